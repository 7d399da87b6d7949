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

// The chunks of a message have 2^this bytes, so that it has 16 of them or more, twice the blocks of
// a message of up to 4 MiB: each costs a release, and a block moves one at a time. Both sides find
// the same.
ONEHOP_PURE uint32_t chunk_shift_of(const oh_lane_handle& lane, uint64_t bytes) {
  constexpr uint32_t kLeast = 12;
  constexpr uint64_t kEnough = 16;
  uint32_t shift = lane.chunk_shift;
  while (shift > kLeast && bytes >> shift < kEnough) --shift;
  return shift;
}

// How a side goes through the chunks of a message: which words it waits for, by how much they may
// be behind, and which it says so in.
struct Chunks {
  uint64_t bytes;  // of the message
  const uint64_t* awaited;
  uint64_t behind;
  uint64_t* told;
};

// The chunks of a message, which the parts of all teams move beside each other, each one after the
// other: move(part, slot, slice) by the part, between the word that says that the slot is this
// side's and the one that says it no longer is. A wait that ends otherwise leaves the rest undone.
// Ends with a vote of the team. (NVRTC takes no generic lambda here: name the part's type.)
template <typename A, typename G, typename Move>
ONEHOP_PROTOCOL void move_chunks(Half<A>& half, G& group, const Chunks& chunks,
                                 Patience<A>& patience, Move&& move) {
  const oh_lane_handle& lane = *half.lane;
  const uint32_t shift = chunk_shift_of(lane, chunks.bytes);
  const uint64_t whole = uint64_t{1} << shift;
  const uint64_t count = (chunks.bytes + whole - 1) >> shift;
  const uint64_t first = half.use_chunks(static_cast<uint32_t>(count));
  auto&& part = group.part();
  const uint32_t parts = group.teams() * part.parts();
  for (uint64_t i = group.team() * part.parts() + part.number(); i < count; i += parts) {
    const uint64_t chunk = first + i;
    const uint64_t slot = chunk & (lane.chunk_slots - 1);
    bool ours = true;
    if (part.leads()) {
      while (ours && poll<A>(&chunks.awaited[slot], half.epoch()) + chunks.behind < chunk + 1) {
        ours = !patience.over();
      }
    }
    if (part.any(!ours)) {
      half.fault = OH_LANE_FAILED;  // the waiting thread has the reason
      if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
      break;
    }
    const uint64_t begin = i << shift;
    const uint64_t rest = chunks.bytes - begin;
    move(part, lane.chunks_at + (slot << lane.chunk_shift),
         Slice{begin, rest < whole ? rest : whole});
    part.sync();
    if (part.leads()) publish<A>(&chunks.told[slot], half.epoch(), chunk + 1);
  }
  (void)half.agree(group, half.is_broken());
}

}  // namespace onehop::detail
