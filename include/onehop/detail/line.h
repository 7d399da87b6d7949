// SPDX-License-Identifier: Apache-2.0
//
// Messages whose data carries its own flag: no fence, no remote poll, several in flight.
//
//   line      word 4 | word 4 | word 4 | flag 4        one access of 16 bytes
//   message   the head: kind, length, first 8 bytes    then rows of 32 lines
//   row       384 bytes: line i holds its words i, 32 + i and 64 + i
//
// So 32 threads with a line each access whole cache lines. The last row has only lines that hold a
// word of the message.
//
// The ring lies in the receiver's memory. Only the sender writes it, and only places that the
// receiver has read.
//
// Threading: each side may consist of many threads that share a message (Share).
#pragma once

#include "onehop/detail/word.h"

namespace onehop::detail {

struct Line {
  uint32_t words[3];
  uint32_t flag;
};

struct LineRing {
  Pair* lines;  // 2^shift lines, zero when the epoch begins
  uint32_t shift;
  uint8_t epoch;
};

inline constexpr uint32_t kHeadBytes = 8;
inline constexpr uint32_t kRowLines = 32;
inline constexpr uint32_t kRowBytes = 384;
inline constexpr uint32_t kWordStride = 128;    // between the words of a line, in bytes
inline constexpr uint32_t kLinesAtOnce = 4;     // lines that a thread has in flight
inline constexpr uint32_t kMostOfBlock = 1024;  // threads

// Lines after the head of a small message.
ONEHOP_PURE uint32_t body_lines(uint32_t bytes) {
  if (bytes <= kHeadBytes) return 0;
  const uint32_t rest = bytes - kHeadBytes;
  const uint32_t rows = rest / kRowBytes;
  const uint32_t words = (rest - rows * kRowBytes + 3) / 4;
  return rows * kRowLines + (words < kRowLines ? words : kRowLines);
}
ONEHOP_PURE uint32_t lines_for(uint32_t bytes) { return 1 + body_lines(bytes); }

// The most bytes that fit into `lines` lines, at least 1.
ONEHOP_PURE uint32_t bytes_within(uint32_t lines) {
  return kHeadBytes + (lines - 1) / kRowLines * kRowBytes + (lines - 1) % kRowLines * 4;
}

// Offset in the message of word 0 of a line after the head.
ONEHOP_PURE uint32_t offset_of(uint32_t line) {
  return kHeadBytes + line / kRowLines * kRowBytes + line % kRowLines * 4;
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
ONEHOP_PURE Line line_of(const Pair& seen) {
  return {{static_cast<uint32_t>(seen.low), static_cast<uint32_t>(seen.low >> 32),
           static_cast<uint32_t>(seen.high)},
          static_cast<uint32_t>(seen.high >> 32)};
}
template <typename A>
ONEHOP_PROTOCOL Line load_line(const Pair* from) {
  return line_of(A::load_line(from));
}
// Acquire: makes visible what the writer stored before a fence and the line.
template <typename A>
ONEHOP_PROTOCOL Line load_line_acquire(const Pair* from) {
  return line_of(A::load_lane(from));
}

// Memory of a message, in words. WholeWords is for aligned memory of whole words and costs least.
// AnyWords is for all other memory. Nothing outside [data, data + bytes) is read or written.
//
// AnyWords reads a misaligned word as the two aligned words that contain it, and writes it in the
// widest pieces that its alignment allows. A word that is incomplete, or whose aligned words reach
// outside of the message, is accessed byte by byte.
template <typename Byte>
struct AnyWords {
  using Word = uint32_t __attribute__((may_alias));
  using Half = uint16_t __attribute__((may_alias));
  Byte* data;
  uint32_t bytes;
  ONEHOP_PROTOCOL uint32_t load(uint32_t at) const {
    const auto skew = static_cast<uint32_t>(reinterpret_cast<uint64_t>(data) % 4);
    if (skew == 0 && at + 4 <= bytes) return *reinterpret_cast<const Word*>(data + at);
    if (at >= skew && at + 8 - skew <= bytes) {
      const Word* words = reinterpret_cast<const Word*>(data + (at - skew));
      return words[0] >> 8 * skew | words[1] << (32 - 8 * skew);
    }
    uint32_t word = 0;
    ONEHOP_ROLLED
    for (uint32_t i = 0; i < 4 && at + i < bytes; ++i) {
      word |= static_cast<uint32_t>(data[at + i]) << 8 * i;
    }
    return word;
  }
  ONEHOP_PROTOCOL void store(uint32_t at, uint32_t word) const {
    const auto skew = static_cast<uint32_t>(reinterpret_cast<uint64_t>(data) % 4);
    Byte* to = data + at;
    if (at + 4 > bytes) {
      ONEHOP_ROLLED
      for (uint32_t i = 0; at + i < bytes; ++i) to[i] = static_cast<uint8_t>(word >> 8 * i);
    } else if (skew == 0) {
      *reinterpret_cast<Word*>(to) = word;
    } else if (skew == 2) {
      *reinterpret_cast<Half*>(to) = static_cast<uint16_t>(word);
      *reinterpret_cast<Half*>(to + 2) = static_cast<uint16_t>(word >> 16);
    } else {
      to[0] = static_cast<uint8_t>(word);
      *reinterpret_cast<Half*>(to + 1) = static_cast<uint16_t>(word >> 8);
      to[3] = static_cast<uint8_t>(word >> 24);
    }
  }
};
template <typename Byte>
struct WholeWords {
  using Word = uint32_t __attribute__((may_alias));
  Byte* data;
  uint32_t bytes;
  ONEHOP_PROTOCOL uint32_t load(uint32_t at) const {
    return at < bytes ? *reinterpret_cast<const Word*>(data + at) : 0;
  }
  ONEHOP_PROTOCOL void store(uint32_t at, uint32_t word) const {
    if (at < bytes) *reinterpret_cast<Word*>(data + at) = word;
  }
};
ONEHOP_PROTOCOL bool in_whole_words(const void* data, uint32_t bytes) {
  return (reinterpret_cast<uint64_t>(data) | bytes) % 4 == 0;
}

}  // namespace onehop::detail
