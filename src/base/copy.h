// SPDX-License-Identifier: Apache-2.0
//
// Copies on the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace oh {

// Copies at most 64 bytes without a call: overlapping moves instead of a loop over the bytes.
inline void copy_small(uint8_t* to, const uint8_t* from, size_t size) {
  auto move = [&]<size_t N>(size_t at) {
    uint8_t part[N];
    std::memcpy(part, from + at, N);
    std::memcpy(to + at, part, N);
  };
  if (size >= 16) {
    for (size_t at = 0; at + 16 < size; at += 16) move.operator()<16>(at);
    move.operator()<16>(size - 16);
  } else if (size >= 8) {
    move.operator()<8>(0);
    move.operator()<8>(size - 8);
  } else if (size >= 4) {
    move.operator()<4>(0);
    move.operator()<4>(size - 4);
  } else {
    for (size_t at = 0; at < size; ++at) to[at] = from[at];
  }
}

inline void copy_bytes(uint8_t* to, const uint8_t* from, size_t size) {
  if (size <= 64) {
    copy_small(to, from, size);
  } else {
    std::memcpy(to, from, size);
  }
}

// Copies out of a ring that another core fills. Writes a word into every line read, so that this
// core holds the line modified when the producer needs it again: the producer takes over a modified
// line five times as fast as it makes a shared line exclusive (docs/host-memory.md has the
// measurement). `ring` is aligned to a line; its bytes are overwritten. `past_cache`: bypass the
// cache for a large target.
void drain_copy(uint8_t* to, uint8_t* ring, size_t size, bool past_cache);

// From this size on the target of a message does not fit into a cache.
inline constexpr uint64_t kPastCache = 16 * 1024 * 1024;

}  // namespace oh
