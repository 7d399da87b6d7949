// SPDX-License-Identifier: Apache-2.0
//
// Messages whose data carries its own flag: no fence, no remote poll, several in flight.
//
//   line      word 4 | word 4 | word 4 | flag 4        one access of 16 bytes
//   message   the head: what it is, the first 8 bytes     then rows of 32 lines
//   row       384 bytes: line i has the words i, 32 + i and 64 + i of them
//
// So 32 threads with a line each read and write whole lines of memory. Of the last row only lines
// that have a word are there.
//
// The ring lies in the receiver's memory. The sender alone writes into it, and only into places
// that the receiver is through with.
//
// Threading: each side may consist of many threads that share a message (Part).
#pragma once

#include "onehop/detail/word.h"

namespace onehop::detail {

struct Line {
  uint32_t words[3];
  uint32_t flag;
};

struct LineRing {
  Pair* lines;  // 2^shift of them, zero when the epoch begins
  uint32_t shift;
  uint8_t epoch;
};

// What one thread does of a message: every of-th line behind the head, from the rank-th on.
struct Part {
  uint32_t rank = 0;
  uint32_t of = 1;
};

inline constexpr uint64_t kHeadBytes = 8;
inline constexpr uint64_t kRowLines = 32;
inline constexpr uint64_t kRowBytes = 384;
inline constexpr uint32_t kWordStride = 128;  // between the words of a line, in bytes
inline constexpr uint32_t kLinesAtOnce = 4;   // whose accesses a thread has under way

// Lines behind the head.
ONEHOP_PURE uint64_t body_lines(uint64_t bytes) {
  if (bytes <= kHeadBytes) return 0;
  uint64_t rest = bytes - kHeadBytes;
  uint64_t words = (rest % kRowBytes + 3) / 4;
  return rest / kRowBytes * kRowLines + (words < kRowLines ? words : kRowLines);
}
ONEHOP_PURE uint64_t lines_for(uint64_t bytes) { return 1 + body_lines(bytes); }

// The most bytes that fit into so many lines, at least 1.
ONEHOP_PURE uint64_t bytes_within(uint64_t lines) {
  uint64_t rest = (lines - 1) % kRowLines;
  return kHeadBytes + (lines - 1) / kRowLines * kRowBytes + rest * 4;
}

ONEHOP_PROTOCOL Pair* line_at(const LineRing& ring, uint64_t position) {
  return &ring.lines[place_of(ring.shift, position)];
}

// Relaxed: the flag is in the same access as the data.
template <typename A>
ONEHOP_PROTOCOL void store_line(Pair* to, const Line& line) {
  A::store_line(to, {line.words[0] | static_cast<uint64_t>(line.words[1]) << 32,
                     line.words[2] | static_cast<uint64_t>(line.flag) << 32});
}
template <typename A>
ONEHOP_PROTOCOL Line load_line(const Pair* from) {
  Pair seen = A::load_line(from);
  return {{static_cast<uint32_t>(seen.low), static_cast<uint32_t>(seen.low >> 32),
           static_cast<uint32_t>(seen.high)},
          static_cast<uint32_t>(seen.high >> 32)};
}

// Up to 4 bytes of memory, of any alignment; nothing behind `left` is touched.
ONEHOP_PROTOCOL uint32_t load_word(const uint8_t* from, uint64_t left) {
  if (left >= 4 && reinterpret_cast<uintptr_t>(from) % 4 == 0) {
    uint32_t word;
    __builtin_memcpy(&word, __builtin_assume_aligned(from, 4), 4);
    return word;
  }
  uint32_t word = 0;
  for (uint32_t i = 0; i < 4 && i < left; ++i) word |= static_cast<uint32_t>(from[i]) << 8 * i;
  return word;
}
ONEHOP_PROTOCOL void store_word(uint8_t* to, uint32_t word, uint64_t left) {
  if (left >= 4 && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
    __builtin_memcpy(__builtin_assume_aligned(to, 4), &word, 4);
    return;
  }
  for (uint32_t i = 0; i < 4 && i < left; ++i) to[i] = static_cast<uint8_t>(word >> 8 * i);
}

// Where word 0 of a line behind the head lies in the message.
ONEHOP_PURE uint64_t offset_of(uint64_t line) {
  return kHeadBytes + line / kRowLines * kRowBytes + line % kRowLines * 4;
}

// The lines behind the head, of a message that begins at `position`. They are known to be free.
template <typename A>
ONEHOP_PROTOCOL void write_body(const LineRing& ring, uint64_t position, const Part& part,
                                const uint8_t* from, uint64_t bytes) {
  const uint64_t count = body_lines(bytes);
  for (uint64_t first = part.rank; first < count; first += uint64_t{kLinesAtOnce} * part.of) {
    Line lines[kLinesAtOnce] = {};
    for (uint32_t k = 0; k < kLinesAtOnce; ++k) {
      const uint64_t i = first + uint64_t{k} * part.of;
      if (i >= count) continue;
      for (uint32_t w = 0; w < 3; ++w) {
        const uint64_t at = offset_of(i) + w * kWordStride;
        if (at < bytes) lines[k].words[w] = load_word(from + at, bytes - at);
      }
      lines[k].flag = flag_at(ring.epoch, ring.shift, position + 1 + i);
    }
    for (uint32_t k = 0; k < kLinesAtOnce; ++k) {
      const uint64_t i = first + uint64_t{k} * part.of;
      if (i < count) store_line<A>(line_at(ring, position + 1 + i), lines[k]);
    }
  }
}

// Waits for the lines behind the head, and stores what of them is within the capacity. `seed` is
// what the thread's first line has been seen to hold. False: patience.over() said so.
template <typename A, typename Patience>
ONEHOP_PROTOCOL bool read_body(const LineRing& ring, uint64_t position, const Part& part,
                               uint8_t* to, uint64_t bytes, uint64_t capacity, Line seed,
                               Patience& patience) {
  const uint64_t count = body_lines(bytes);
  const uint64_t most = bytes < capacity ? bytes : capacity;
  for (uint64_t first = part.rank; first < count; first += uint64_t{kLinesAtOnce} * part.of) {
    Line lines[kLinesAtOnce];
    for (uint32_t k = 0; k < kLinesAtOnce; ++k) {
      const uint64_t i = first + uint64_t{k} * part.of;
      if (i == part.rank) {
        lines[k] = seed;
      } else if (i < count) {
        lines[k] = load_line<A>(line_at(ring, position + 1 + i));
      }
    }
    for (uint32_t k = 0; k < kLinesAtOnce; ++k) {
      const uint64_t i = first + uint64_t{k} * part.of;
      if (i >= count) continue;
      const uint32_t flag = flag_at(ring.epoch, ring.shift, position + 1 + i);
      while (lines[k].flag != flag) {
        if (patience.over()) return false;
        lines[k] = load_line<A>(line_at(ring, position + 1 + i));
      }
      for (uint32_t w = 0; w < 3; ++w) {
        const uint64_t at = offset_of(i) + w * kWordStride;
        if (at < most) store_word(to + at, lines[k].words[w], most - at);
      }
    }
  }
  return true;
}

}  // namespace onehop::detail
