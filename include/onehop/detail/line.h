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
// Threading: each side may consist of many threads that share a message (Share).
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

inline constexpr uint32_t kHeadBytes = 8;
inline constexpr uint32_t kRowLines = 32;
inline constexpr uint32_t kRowBytes = 384;
inline constexpr uint32_t kWordStride = 128;  // between the words of a line, in bytes
inline constexpr uint32_t kLinesAtOnce = 4;   // whose accesses a thread has under way

// Lines behind the head; of small messages, so 32 bits suffice.
ONEHOP_PURE uint32_t body_lines(uint32_t bytes) {
  if (bytes <= kHeadBytes) return 0;
  const uint32_t rest = bytes - kHeadBytes;
  const uint32_t rows = rest / kRowBytes;
  const uint32_t words = (rest - rows * kRowBytes + 3) / 4;
  return rows * kRowLines + (words < kRowLines ? words : kRowLines);
}
ONEHOP_PURE uint32_t lines_for(uint32_t bytes) { return 1 + body_lines(bytes); }

// The most bytes that fit into so many lines, at least 1.
ONEHOP_PURE uint32_t bytes_within(uint32_t lines) {
  return kHeadBytes + (lines - 1) / kRowLines * kRowBytes + (lines - 1) % kRowLines * 4;
}

// Where word 0 of a line behind the head lies in the message.
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
template <typename A>
ONEHOP_PROTOCOL Line load_line(const Pair* from) {
  const Pair seen = A::load_line(from);
  return {{static_cast<uint32_t>(seen.low), static_cast<uint32_t>(seen.low >> 32),
           static_cast<uint32_t>(seen.high)},
          static_cast<uint32_t>(seen.high >> 32)};
}

// Memory of a message, in words: of any alignment and length, or of whole words only, which is
// faster. Nothing outside [data, data + bytes) is touched.
template <typename Byte>
struct AnyWords {
  Byte* data;
  uint32_t bytes;
  ONEHOP_PROTOCOL uint32_t load(uint32_t at) const {
    uint32_t word = 0;
    ONEHOP_ROLLED
    for (uint32_t i = 0; i < 4 && at + i < bytes; ++i) {
      word |= static_cast<uint32_t>(data[at + i]) << 8 * i;
    }
    return word;
  }
  ONEHOP_PROTOCOL void store(uint32_t at, uint32_t word) const {
    ONEHOP_ROLLED
    for (uint32_t i = 0; i < 4 && at + i < bytes; ++i) {
      data[at + i] = static_cast<uint8_t>(word >> 8 * i);
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

// Where in a ring a message begins, and the flags of its lines: those of this lap, and of the next
// where it wraps. In 32 bits: a message takes a few instructions a line, and they are what it
// costs.
struct Cursor {
  Pair* lines = nullptr;
  uint32_t mask = 0;  // lines - 1
  uint32_t place = 0;
  uint32_t flag = 0;

  Cursor() = default;
  ONEHOP_PROTOCOL Cursor(const LineRing& ring, uint64_t position)
      : lines(ring.lines),
        mask(static_cast<uint32_t>((uint64_t{1} << ring.shift) - 1)),
        place(static_cast<uint32_t>(place_of(ring.shift, position))),
        flag(flag_at(ring.epoch, ring.shift, position)) {}
  ONEHOP_PURE static uint32_t next_lap(uint32_t flag) {
    return (flag & 0xff000000u) | ((flag + 1) & 0xffffffu);
  }
  // Of the line so far behind the place, less than a ring.
  ONEHOP_PROTOCOL Pair* at(uint32_t behind) const { return &lines[(place + behind) & mask]; }
  ONEHOP_PROTOCOL uint32_t flag_of(uint32_t behind) const {
    return place + behind > mask ? next_lap(flag) : flag;
  }
  ONEHOP_PROTOCOL void advance(uint32_t by) {
    flag = flag_of(by);
    place = (place + by) & mask;
  }
};

// The lines of one thread: the first, and how it gets to the next.
struct Share {
  uint32_t rank;
  uint32_t of;
  uint32_t first;   // offset of its first line's word 0
  uint32_t stride;  // between the offsets of its lines; 0: not always the same

  ONEHOP_PROTOCOL Share(uint32_t thread, uint32_t threads)
      : rank(thread),
        of(threads),
        first(offset_of(thread)),
        stride(threads % kRowLines == 0 ? threads / kRowLines * kRowBytes : 0) {}
  ONEHOP_PROTOCOL uint32_t next(uint32_t at, uint32_t line) const {
    return stride != 0 ? at + stride : offset_of(line);
  }
};

template <typename Words>
ONEHOP_PROTOCOL Line load_words(const Words& words, uint32_t at, uint32_t flag) {
  return {{words.load(at), words.load(at + kWordStride), words.load(at + 2 * kWordStride)}, flag};
}
template <typename Words>
ONEHOP_PROTOCOL void store_words(const Words& words, uint32_t at, const Line& line) {
  words.store(at, line.words[0]);
  words.store(at + kWordStride, line.words[1]);
  words.store(at + 2 * kWordStride, line.words[2]);
}

// The thread's lines of a message at the cursor; all are known to be free. A line is there if its
// first word is.
template <typename A, typename Words>
ONEHOP_PROTOCOL void write_lines(const Cursor& cursor, const Share& share, const Words& words) {
  // The head's words and those of the thread's first line are loaded before either is stored.
  Line head{{words.bytes, 0, 0}, cursor.flag};
  if (share.rank == 0) {
    head.words[1] = words.load(0);
    head.words[2] = words.load(4);
  }
  uint32_t line = share.rank;
  uint32_t at = share.first;
  const Line first = load_words(words, at, cursor.flag_of(1 + line));
  if (share.rank == 0) store_line<A>(cursor.at(0), head);
  if (at >= words.bytes) return;
  store_line<A>(cursor.at(1 + line), first);
  line += share.of;
  at = share.next(at, line);
  // As many loads under way as there are lines, where there are many.
  ONEHOP_ROLLED
  while (share.stride != 0 && at + (kLinesAtOnce - 1) * share.stride < words.bytes) {
    Line lines[kLinesAtOnce];
    ONEHOP_UNROLLED
    for (uint32_t k = 0; k < kLinesAtOnce; ++k) {
      lines[k] = load_words(words, at + k * share.stride, cursor.flag_of(1 + line + k * share.of));
    }
    ONEHOP_UNROLLED
    for (uint32_t k = 0; k < kLinesAtOnce; ++k) {
      store_line<A>(cursor.at(1 + line + k * share.of), lines[k]);
    }
    line += kLinesAtOnce * share.of;
    at += kLinesAtOnce * share.stride;
  }
  ONEHOP_ROLLED
  while (at < words.bytes) {
    store_line<A>(cursor.at(1 + line), load_words(words, at, cursor.flag_of(1 + line)));
    line += share.of;
    at = share.next(at, line);
  }
}

// Waits for the line. False: patience.over() said so.
template <typename A, typename Patience>
ONEHOP_PROTOCOL bool wait_for_line(const Cursor& cursor, uint32_t behind, Line* line,
                                   Patience& patience) {
  const uint32_t flag = cursor.flag_of(behind);
  while (line->flag != flag) {
    if (patience.over()) return false;
    *line = load_line<A>(cursor.at(behind));
  }
  return true;
}

// Waits for the thread's lines behind the head of a message of `bytes`, and stores what the words
// have room for. `seed` is what its first line has been seen to hold. False: patience.over() said
// so.
template <typename A, typename Words, typename Patience>
ONEHOP_PROTOCOL bool read_lines(const Cursor& cursor, const Share& share, uint32_t bytes,
                                const Words& words, Line seed, Patience& patience) {
  uint32_t line = share.rank;
  uint32_t at = share.first;
  if (at >= bytes) return true;
  if (!wait_for_line<A>(cursor, 1 + line, &seed, patience)) return false;
  store_words(words, at, seed);
  line += share.of;
  at = share.next(at, line);
  ONEHOP_ROLLED
  while (share.stride != 0 && at + (kLinesAtOnce - 1) * share.stride < bytes) {
    Line lines[kLinesAtOnce];
    ONEHOP_UNROLLED
    for (uint32_t k = 0; k < kLinesAtOnce; ++k) {
      lines[k] = load_line<A>(cursor.at(1 + line + k * share.of));
    }
    ONEHOP_UNROLLED
    for (uint32_t k = 0; k < kLinesAtOnce; ++k) {
      if (!wait_for_line<A>(cursor, 1 + line + k * share.of, &lines[k], patience)) return false;
      store_words(words, at + k * share.stride, lines[k]);
    }
    line += kLinesAtOnce * share.of;
    at += kLinesAtOnce * share.stride;
  }
  ONEHOP_ROLLED
  while (at < bytes) {
    Line one = load_line<A>(cursor.at(1 + line));
    if (!wait_for_line<A>(cursor, 1 + line, &one, patience)) return false;
    store_words(words, at, one);
    line += share.of;
    at = share.next(at, line);
  }
  return true;
}

}  // namespace onehop::detail
