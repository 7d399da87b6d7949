// SPDX-License-Identifier: Apache-2.0
//
// Messages over a lane, of any size. Small ones lie in the ring, flags and all (line.h). A large
// one takes two lines of it: one says how long it is, the other how it came. In between, the
// receiver says where its buffer is, and the sender puts the bytes there if it has that memory
// mapped; else they go through the chunks of the lane.
//
//   head line    kind 2 | length 30 | the first 8 bytes, or the length of a large message
//   end line     kind 2 | how 30
//
//   sender    ANNOUNCED ───────────▶ posted? ─▶ put ─▶ fence ─▶ ENDED: put
//   receiver  posts ─▶ ANNOUNCED? ─┘       └──▶ ENDED: staged ─▶ chunks, each behind its word
//
// What none of these says ends the lane as OH_LANE_PROTOCOL.
//
// A message that is longer than its receive costs both sides an error and neither its step: the
// receiver drains what it has no room for, and of a large one nothing is sent.
//
// Threading: see Half. The source is read by all threads of the group, at any time until the next
// barrier; the target is whole when receive() returns.
#pragma once

#include "onehop/detail/copy.h"
#include "onehop/detail/half.h"
#include "onehop/detail/posting.h"

namespace onehop::detail {

enum HeadKind : uint32_t { kSmall = 0, kAnnounced = 1, kEnded = 2 };
// Of kEnded, in place of the length; of routes, in place of an address, too.
enum Ending : uint32_t { kPut = 1, kStaged = 2, kRefused = 3 };
inline constexpr uint32_t kLargeLines = 2;

// The part of [0, bytes) that a team copies, in whole tiles.
struct Slice {
  uint64_t begin;
  uint64_t size;
};
ONEHOP_PURE Slice slice_of(uint64_t bytes, uint32_t team, uint32_t teams) {
  constexpr uint64_t kTile = 4096;
  const uint64_t tiles = (bytes + kTile - 1) / kTile;
  const uint64_t first = tiles * team / teams * kTile;
  const uint64_t behind = tiles * (team + 1) / teams * kTile;
  const uint64_t end = behind < bytes ? behind : bytes;
  return {first < end ? first : end, first < end ? end - first : 0};
}

}  // namespace onehop::detail
