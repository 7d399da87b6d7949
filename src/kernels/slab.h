// SPDX-License-Identifier: Apache-2.0
//
// The slab: device memory that one side of a link provides for kernels, mapped by the peer.
//
//   0        signals: arrived, taken, teams, waits                  LaneSignals
//   4 KiB    memory of each lane, 2 KiB apart: cursors and words     LaneMemory
//   40 KiB   peer memory mapped here, for the kernels of this side   ImportTable
//   64 KiB   lines of each lane; narrow lanes: also their chunks
//   then     chunks of the wide lanes, in the rest of the slab
//
// Lane 0 is wide: on it, large messages that cannot be put run at full bandwidth. The other lanes
// are wide, too, if the slab has room. From 4 MiB on, the ring of lane 0 is twice as long, so that
// a receive of 256 KiB need not end with a store of credit.
#pragma once

#include <cstdint>

#include "onehop/detail/posting.h"

namespace oh::kernels {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kLanesAt = 4 * kKiB;
inline constexpr uint64_t kLaneStride = 2 * kKiB;
inline constexpr uint64_t kImportsAt = 40 * kKiB;
inline constexpr uint32_t kImportShift = 9;
inline constexpr uint64_t kLinesAt = 64 * kKiB;
inline constexpr uint32_t kFirstRing = 16;  // lane 0 of a slab of kLeastFirstRing
inline constexpr uint32_t kWideRing = 15;
inline constexpr uint32_t kNarrowRing = 11;
inline constexpr uint32_t kLeastWideChunk = 14;
inline constexpr uint32_t kNarrowChunk = 12;
inline constexpr uint32_t kLeastWideSlots = 32;
inline constexpr uint32_t kMostWideSlots = 64;
inline constexpr uint32_t kNarrowSlots = 4;

static_assert(sizeof(onehop::detail::LaneSignals) <= kLanesAt);
static_assert(sizeof(onehop::detail::LaneMemory) <= kLaneStride);
static_assert(kLanesAt + OH_LANES * kLaneStride <= kImportsAt);
static_assert(kImportsAt + sizeof(onehop::detail::ImportTable) +
                  ((sizeof(onehop::detail::ImportEntry)) << kImportShift) <=
              kLinesAt);
static_assert(kMostWideSlots <= onehop::detail::kMostChunks);

struct LanePlace {
  uint64_t memory;  // offsets in the slab
  uint64_t lines;
  uint64_t chunks;
  uint32_t ring_shift;
  uint32_t chunk_shift;
  uint32_t chunk_slots;
};

inline constexpr uint64_t kWideLines = uint64_t{16} << kWideRing;
inline constexpr uint64_t kNarrowLane =
    (uint64_t{16} << kNarrowRing) + (uint64_t{kNarrowSlots} << kNarrowChunk);
inline constexpr uint64_t kLeastWideChunks = uint64_t{kLeastWideSlots} << kLeastWideChunk;
inline constexpr uint64_t kLeastSlab = 2048 * kKiB;
inline constexpr uint64_t kLeastFirstRing = 4096 * kKiB;
// Offset of the lines of lane 1, and of the wide lanes' chunks: if all lanes are wide, or lane 0.
ONEHOP_PURE uint64_t second_lines_at(uint64_t slab) {
  return kLinesAt + (uint64_t{16} << (slab >= kLeastFirstRing ? kFirstRing : kWideRing));
}
ONEHOP_PURE uint64_t chunks_at(uint64_t slab, bool all) {
  return second_lines_at(slab) + (OH_LANES - 1) * (all ? kWideLines : kNarrowLane);
}
inline constexpr uint64_t kWideSlab =
    chunks_at(kLeastFirstRing, true) + OH_LANES * kLeastWideChunks;
static_assert(chunks_at(kLeastSlab, false) + kLeastWideChunks <= kLeastSlab);

ONEHOP_PURE LanePlace lane_place(uint64_t slab, uint32_t lane) {
  const bool all = slab >= kWideSlab;
  const uint64_t chunks_of_lanes = chunks_at(slab, all);
  LanePlace place{};
  place.memory = kLanesAt + lane * kLaneStride;
  if (lane == 0 || all) {
    place.lines = lane == 0 ? kLinesAt : second_lines_at(slab) + (lane - 1) * kWideLines;
    place.ring_shift = lane == 0 && slab >= kLeastFirstRing ? kFirstRing : kWideRing;
    const uint64_t room = (slab - chunks_of_lanes) / (all ? OH_LANES : 1);
    // Two chunks for each block of a large message: it fills one while the other one is emptied.
    const bool two = room >= uint64_t{kMostWideSlots} << kLeastWideChunk;
    place.chunk_slots = two ? kMostWideSlots : kLeastWideSlots;
    place.chunk_shift = kLeastWideChunk;
    while (uint64_t{place.chunk_slots} << (place.chunk_shift + 1) <= room) ++place.chunk_shift;
    const uint64_t chunks = uint64_t{place.chunk_slots} << place.chunk_shift;
    place.chunks = chunks_of_lanes + lane * chunks;
  } else {
    place.lines = second_lines_at(slab) + (lane - 1) * kNarrowLane;
    place.ring_shift = kNarrowRing;
    place.chunk_slots = kNarrowSlots;
    place.chunk_shift = kNarrowChunk;
    place.chunks = place.lines + (uint64_t{16} << kNarrowRing);
  }
  return place;
}

}  // namespace oh::kernels
