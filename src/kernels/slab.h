// SPDX-License-Identifier: Apache-2.0
//
// The slab: what a side of a link has in its device memory for kernels, mapped by the other side.
//
//   0        signals: what arrived, what was taken, teams, waits    LaneSignals
//   4 KiB    memory of each lane, 2 KiB apart: cursors and words     LaneMemory
//   40 KiB   the peer's memory that is mapped here, for our kernels  ImportTable
//   64 KiB   lines of each lane; of narrow ones with their chunks
//   behind   chunks of the wide lanes, which take the rest
//
// Lane 0 is wide: messages that are large and cannot be put run at full speed there. The others
// are, too, where the slab has room for it.
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
// Where the chunks of wide lanes begin: of lane 0 alone, or of all.
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
    // Two for each block of a large message: it fills one while the other one is emptied.
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
