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
// are wide, too, if the slab has room.
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
// Offset of the wide lanes' chunks: if only lane 0 is wide, and if all lanes are.
inline constexpr uint64_t kChunksOfOneAt = kLinesAt + kWideLines + (OH_LANES - 1) * kNarrowLane;
inline constexpr uint64_t kChunksOfAllAt = kLinesAt + OH_LANES * kWideLines;
inline constexpr uint64_t kLeastSlab = 2048 * kKiB;
inline constexpr uint64_t kWideSlab = kChunksOfAllAt + OH_LANES * kLeastWideChunks;
static_assert(kChunksOfOneAt + kLeastWideChunks <= kLeastSlab);

ONEHOP_PURE LanePlace lane_place(uint64_t slab, uint32_t lane) {
  const bool all = slab >= kWideSlab;
  LanePlace place{};
  place.memory = kLanesAt + lane * kLaneStride;
  if (lane == 0 || all) {
    place.lines = kLinesAt + lane * kWideLines;
    place.ring_shift = kWideRing;
    const uint64_t room = all ? (slab - kChunksOfAllAt) / OH_LANES : slab - kChunksOfOneAt;
    // Two chunks for each block of a large message: it fills one while the other one is emptied.
    const bool two = room >= uint64_t{kMostWideSlots} << kLeastWideChunk;
    place.chunk_slots = two ? kMostWideSlots : kLeastWideSlots;
    place.chunk_shift = kLeastWideChunk;
    while (uint64_t{place.chunk_slots} << (place.chunk_shift + 1) <= room) ++place.chunk_shift;
    const uint64_t chunks = uint64_t{place.chunk_slots} << place.chunk_shift;
    place.chunks = all ? kChunksOfAllAt + lane * chunks : kChunksOfOneAt;
  } else {
    place.lines = kLinesAt + kWideLines + (lane - 1) * kNarrowLane;
    place.ring_shift = kNarrowRing;
    place.chunk_slots = kNarrowSlots;
    place.chunk_shift = kNarrowChunk;
    place.chunks = place.lines + (uint64_t{16} << kNarrowRing);
  }
  return place;
}

}  // namespace oh::kernels
