// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of batches as messages: lists of blocks, and their bytes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "conformance/batches.h"

namespace conformance {

using namespace std::chrono_literals;

struct Cut : Blocks {
  // Returns the concatenated bytes of the blocks.
  onehop::Bytes gather(const onehop::Bytes& memory) const {
    onehop::Bytes bytes;
    for (size_t i = 0; i < offsets.size(); ++i) {
      auto from = memory.begin() + static_cast<ptrdiff_t>(offsets[i]);
      bytes.insert(bytes.end(), from, from + static_cast<ptrdiff_t>(lengths[i]));
    }
    return bytes;
  }
  // Whether the blocks start with `message` and every other byte of the memory is still poisoned.
  ::testing::AssertionResult holds(Buffer& buffer, const onehop::Bytes& message) const {
    onehop::Bytes expected(buffer.size(), 0xee);
    size_t at = 0;
    for (size_t i = 0; i < offsets.size() && at < message.size(); ++i) {
      size_t size = std::min<size_t>(lengths[i], message.size() - at);
      std::memcpy(expected.data() + offsets[i], message.data() + at, size);
      at += size;
    }
    onehop::Bytes bytes = buffer.bytes();
    if (bytes == expected) return ::testing::AssertionSuccess();
    auto [wrong, other] = std::mismatch(bytes.begin(), bytes.end(), expected.begin());
    return ::testing::AssertionFailure() << "byte " << wrong - bytes.begin() << " is "
                                         << int{*wrong} << " instead of " << int{*other};
  }
};

// Returns `count` blocks of 0 to `most` bytes, in descending order within `space` bytes of memory.
inline Cut cut_up(size_t count, uint64_t most, size_t space) {
  Cut cut;
  for (size_t i = 0; i < count; ++i) cut.add(space - (i + 1) * (most + 1), i * 37 % (most + 1));
  return cut;
}
inline Cut whole(uint64_t length) {
  Cut cut;
  cut.add(0, length);
  return cut;
}

// Returns the bytes that the first side sent from a buffer filled with the seed.
inline onehop::Bytes sent(const Cut& cut, size_t size, uint64_t seed) {
  return cut.gather(pattern(seed, size));
}

inline void send_filled(Side& side, const Cut& cut, size_t size, uint64_t seed, uint64_t tag = 0) {
  Buffer out = side.buffer(size);
  out.fill(seed);
  side.peer().send_batch(cut.of(out), tag, 20s);
}

}  // namespace conformance
