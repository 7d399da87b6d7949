// SPDX-License-Identifier: Apache-2.0
//
// Messages whose data carries its own flag: no fence, no remote poll, several in flight.
//
//   line      bytes 4 | flag 4 | bytes 4 | flag 4        each half is one access of 8 bytes
//   message   line p: length 8      lines p + 1, p + 2, ...: 8 bytes each, the last filled with 0
//
// The ring lies in the receiver's memory. The sender alone writes into it, and only into places
// that the receiver is through with; a word in the sender's memory says so, when the receiver
// likes.
//
// Threading: one sending and one receiving side, each of as many threads as share a message (Part).
// One thread of the sender asks for room, then a barrier of its side, for others may be behind; the
// receiver has a barrier between the last read of a message and the word that counts it.
#pragma once

#include <string.h>

#include "onehop/detail/word.h"

namespace onehop::detail {

struct LineRing {
  Pair* lines;  // 2^shift of them, zero when the epoch begins
  uint32_t shift;
  uint8_t epoch;
};

// What one thread does of a message: every of-th line, from the rank-th on.
struct Part {
  uint64_t position;  // of the message's first line
  uint64_t bytes;
  uint32_t rank = 0;
  uint32_t of = 1;
};

// At most the ring's number: more never fits.
ONEHOP_PURE uint64_t lines_for(uint64_t bytes) { return 1 + bytes / 8 + (bytes % 8 != 0); }

// Relaxed: the flag is in the same access as the data.
template <typename A>
ONEHOP_PROTOCOL void write_line(const LineRing& ring, uint64_t position, uint64_t bytes) {
  uint64_t flag = static_cast<uint64_t>(flag_at(ring.epoch, ring.shift, position)) << 32;
  A::store_pair(&ring.lines[place_of(ring.shift, position)],
                {flag | (bytes & UINT32_MAX), flag | bytes >> 32});
}

// False: it is not there yet, or not all of it.
template <typename A>
ONEHOP_PROTOCOL bool read_line(const LineRing& ring, uint64_t position, uint64_t* bytes) {
  uint32_t flag = flag_at(ring.epoch, ring.shift, position);
  Pair seen = A::load_pair(&ring.lines[place_of(ring.shift, position)]);
  if (seen.low >> 32 != flag || seen.high >> 32 != flag) return false;
  *bytes = (seen.low & UINT32_MAX) | seen.high << 32;
  return true;
}

ONEHOP_PROTOCOL uint64_t load_bytes(const uint8_t* from, uint64_t most) {
  uint64_t value = 0;
  if (most >= 8 && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    memcpy(&value, __builtin_assume_aligned(from, 8), 8);
    return value;
  }
  for (uint32_t i = 0; i < 8 && i < most; ++i) value |= static_cast<uint64_t>(from[i]) << 8 * i;
  return value;
}

ONEHOP_PROTOCOL void store_bytes(uint8_t* to, uint64_t value, uint64_t most) {
  if (most >= 8 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
    memcpy(__builtin_assume_aligned(to, 8), &value, 8);
    return;
  }
  for (uint32_t i = 0; i < 8 && i < most; ++i) to[i] = static_cast<uint8_t>(value >> 8 * i);
}

// The caller knows that lines_for(part.bytes) lines are free.
template <typename A>
ONEHOP_PROTOCOL void write_message(const LineRing& ring, const Part& part, const void* source) {
  const uint8_t* from = static_cast<const uint8_t*>(source);
  if (part.rank == 0) write_line<A>(ring, part.position, part.bytes);
  for (uint64_t at = uint64_t{part.rank} * 8; at < part.bytes; at += uint64_t{part.of} * 8) {
    write_line<A>(ring, part.position + 1 + at / 8, load_bytes(from + at, part.bytes - at));
  }
}

// The length of the message at a position. False: it has not begun yet. It is the sender's word:
// the caller holds it against what it expects and against its own capacity.
template <typename A>
ONEHOP_PROTOCOL bool read_length(const LineRing& ring, uint64_t position, uint64_t* bytes) {
  return read_line<A>(ring, position, bytes);
}

// Waits for the bytes behind the length. False: give_up() said so; what has come is in the target.
template <typename A, typename GiveUp>
ONEHOP_PROTOCOL bool read_message(const LineRing& ring, const Part& part, void* target,
                                  GiveUp&& give_up) {
  uint8_t* to = static_cast<uint8_t*>(target);
  for (uint64_t at = uint64_t{part.rank} * 8; at < part.bytes; at += uint64_t{part.of} * 8) {
    uint64_t value;
    while (!read_line<A>(ring, part.position + 1 + at / 8, &value)) {
      if (give_up()) return false;
    }
    store_bytes(to + at, value, part.bytes - at);
  }
  return true;
}

}  // namespace onehop::detail
