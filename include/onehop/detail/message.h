// SPDX-License-Identifier: Apache-2.0
//
// Messages of any size over a lane. A small message lies in the ring, with its flags (line.h). A
// large message takes two lines of the ring: the head announces its length, the end line says how
// it was delivered. In between the receiver posts its buffer. If the sender has that memory mapped,
// it puts the bytes there; otherwise they go through the chunks of the lane.
//
//   head line    kind 2 | length 30 | the first 8 bytes, or the length of a large message
//   end line     kind 2 | how 30
//
//   sender    ANNOUNCED ───────────▶ posted? ─▶ put ─▶ fence ─▶ ENDED: put
//   receiver  posts ─▶ ANNOUNCED? ─┘       └──▶ ENDED: staged ─▶ chunks, each before its word
//
// Any other value fails the lane with OH_LANE_PROTOCOL.
//
// A message longer than its receive is an error, but both sides stay in step: the receiver drains
// the rest of a small message, and the sender sends no byte of a large one.
//
// Threading: see Half. Any thread of the group may read the source until the next barrier. The
// target is complete when receive() returns.
#pragma once

#include "onehop/detail/copy.h"
#include "onehop/detail/half.h"
#include "onehop/detail/posting.h"

namespace onehop::detail {

enum HeadKind : uint32_t { kSmall = 0, kAnnounced = 1, kEnded = 2 };
// In an end line, in place of the length. In a route, in place of an address.
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

// Chunk size of a message as a power of two, such that the message has at least 16 chunks: twice
// the blocks of a message of up to 4 MiB. A block moves one chunk at a time, and each chunk costs a
// release. Both sides compute the same value.
ONEHOP_PURE uint32_t chunk_shift_of(const oh_lane_handle& lane, uint64_t bytes) {
  constexpr uint32_t kLeast = 12;
  constexpr uint64_t kEnough = 16;
  uint32_t shift = lane.chunk_shift;
  while (shift > kLeast && bytes >> shift < kEnough) --shift;
  return shift;
}

// How one side moves the chunks of a message.
struct Chunks {
  uint64_t bytes;           // of the message
  const uint64_t* awaited;  // words that make a slot available
  uint64_t behind;          // by how many chunks they may lag
  uint64_t* told;           // words that this side publishes
};

// Moves the chunks of a message. The parts of all teams work concurrently, each on one chunk at a
// time: it waits until the slot is available, calls move(part, slot, slice), and publishes the
// slot's word. A part whose wait fails skips its remaining chunks. Ends with a vote of the team.
// (NVRTC accepts no generic lambda here: name the part's type.)
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
      half.fault = OH_LANE_FAILED;  // only the waiting thread has the reason
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
