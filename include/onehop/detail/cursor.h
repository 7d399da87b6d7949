// SPDX-License-Identifier: Apache-2.0
//
// Writes and reads a thread's lines of a message (line.h). The instructions here determine the
// latency of a small message, so there are few of them.
//
// Threading: each side may consist of many threads that share a message (Share).
#pragma once

#include "onehop/detail/line.h"

namespace onehop::detail {

// Start of a message in the ring, with the flags of this lap and of the next, for messages that
// wrap. 32-bit fields, to save instructions per line.
struct Cursor {
  Pair* lines = nullptr;
  uint32_t mask = 0;  // lines - 1
  uint32_t place = 0;
  uint32_t flag = 0;
  uint32_t next_flag = 0;

  Cursor() = default;
  ONEHOP_PROTOCOL Cursor(const LineRing& ring, uint64_t position)
      : lines(ring.lines),
        mask(static_cast<uint32_t>((uint64_t{1} << ring.shift) - 1)),
        place(static_cast<uint32_t>(place_of(ring.shift, position))),
        flag(flag_at(ring.epoch, ring.shift, position)),
        next_flag(next_lap(flag)) {}
  ONEHOP_PURE static uint32_t next_lap(uint32_t flag) {
    return (flag & 0xff000000u) | ((flag + 1) & 0xffffffu);
  }
  // Address of the line `behind` places after the cursor, less than a ring.
  ONEHOP_PROTOCOL Pair* at(uint32_t behind) const { return &lines[(place + behind) & mask]; }
  ONEHOP_PROTOCOL uint32_t flag_of(uint32_t behind) const {
    return place + behind > mask ? next_flag : flag;
  }
  ONEHOP_PROTOCOL void advance(uint32_t by) {
    place += by;
    if (place <= mask) return;
    place &= mask;
    flag = next_flag;
    next_flag = next_lap(flag);
  }
};

// The lines of one thread: its first line, and the step to the next.
struct Share {
  uint32_t rank;
  uint32_t of;
  uint32_t first;   // offset in the message of word 0 of its first line
  uint32_t stride;  // between the offsets of its lines; 0: not constant

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

// The head of a small message, with its first bytes.
template <typename Words>
ONEHOP_PROTOCOL Line load_head(const Words& words, uint32_t flag) {
  return {{words.bytes, words.load(0), words.load(4)}, flag};
}
template <typename A, typename Words>
ONEHOP_PROTOCOL void write_head(const Cursor& cursor, const Words& words) {
  store_line<A>(cursor.at(0), load_head(words, cursor.flag));
}
template <typename Words>
ONEHOP_PROTOCOL void store_head(const Words& words, const Line& head) {
  words.store(0, head.words[1]);
  words.store(4, head.words[2]);
}

// Writes the thread's lines of a message at the cursor. Precondition: their places are free. A line
// exists if the message has its word 0.
template <typename A, typename Words>
ONEHOP_PROTOCOL void write_lines(const Cursor& cursor, const Share& share, const Words& words) {
  // Load the words of the head and of the first line before either is stored.
  Line head{};
  if (share.rank == 0) head = load_head(words, cursor.flag);
  uint32_t line = share.rank;
  uint32_t at = share.first;
  const Line first = load_words(words, at, cursor.flag_of(1 + line));
  if (share.rank == 0) store_line<A>(cursor.at(0), head);
  if (at >= words.bytes) return;
  store_line<A>(cursor.at(1 + line), first);
  line += share.of;
  at = share.next(at, line);
  // Keep kLinesAtOnce loads in flight.
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

template <typename A>
ONEHOP_PROTOCOL void write_message(const Cursor& cursor, const Share& share, const uint8_t* from,
                                   uint32_t bytes) {
  if (in_whole_words(from, bytes)) [[likely]] {
    write_lines<A>(cursor, share, WholeWords<const uint8_t>{from, bytes});
  } else {
    write_lines<A>(cursor, share, AnyWords<const uint8_t>{from, bytes});
  }
}

// Waits for the line. Returns false if the patience ended first.
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

// Reads kLines lines of the thread from `*line` on. All loads are issued before the first wait.
// Returns false if the patience ended first.
template <typename A, uint32_t kLines, typename Words, typename Patience>
ONEHOP_PROTOCOL bool read_at_once(const Cursor& cursor, const Share& share, const Words& words,
                                  uint32_t* line, uint32_t* at, Patience& patience) {
  Line lines[kLines];
  ONEHOP_UNROLLED
  for (uint32_t k = 0; k < kLines; ++k) {
    lines[k] = load_line<A>(cursor.at(1 + *line + k * share.of));
  }
  ONEHOP_UNROLLED
  for (uint32_t k = 0; k < kLines; ++k) {
    if (!wait_for_line<A>(cursor, 1 + *line + k * share.of, &lines[k], patience)) return false;
    store_words(words, *at + k * share.stride, lines[k]);
  }
  *line += kLines * share.of;
  *at += kLines * share.stride;
  return true;
}

// Stores a small message's words for which there is room: rank 0 those of the head, and each thread
// those of its lines, for which it waits. `seed`: the value already loaded from the thread's first
// line. Returns false if the patience ended first.
template <typename A, typename Words, typename Patience>
ONEHOP_PROTOCOL bool read_lines(const Cursor& cursor, const Share& share, const Words& words,
                                const Line& head, Line seed, Patience& patience) {
  const uint32_t bytes = head.words[0];
  if (share.rank == 0) store_head(words, head);
  uint32_t line = share.rank;
  uint32_t at = share.first;
  if (at >= bytes) return true;
  if (!wait_for_line<A>(cursor, 1 + line, &seed, patience)) return false;
  store_words(words, at, seed);
  line += share.of;
  at = share.next(at, line);
  // One line a thread: skip the loops. Fetching their instructions costs up to 0.2 us at 128 B.
  if (at >= bytes) return true;
  // The lines of one block arrive together, so read four at once. A cluster's lines arrive while
  // they are read: with only a few left, the first would wait for the last.
  const uint32_t many = share.of > kMostOfBlock ? 2 * kLinesAtOnce : kLinesAtOnce;
  ONEHOP_ROLLED
  while (share.stride != 0 && at + (many - 1) * share.stride < bytes) {
    if (!read_at_once<A, kLinesAtOnce>(cursor, share, words, &line, &at, patience)) return false;
  }
  ONEHOP_ROLLED
  while (share.stride != 0 && at + share.stride < bytes) {
    if (!read_at_once<A, 2>(cursor, share, words, &line, &at, patience)) return false;
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

template <typename A, typename Patience>
ONEHOP_PROTOCOL bool read_message(const Cursor& cursor, const Share& share, uint8_t* to,
                                  uint32_t room, const Line& head, const Line& seed,
                                  Patience& patience) {
  if (in_whole_words(to, room)) [[likely]] {
    return read_lines<A>(cursor, share, WholeWords<uint8_t>{to, room}, head, seed, patience);
  }
  return read_lines<A>(cursor, share, AnyWords<uint8_t>{to, room}, head, seed, patience);
}

}  // namespace onehop::detail
