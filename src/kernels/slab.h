// SPDX-License-Identifier: Apache-2.0
//
// The slab: what a side of a link has in its device memory for kernels, mapped by the other side.
//
//   0        signals: what arrived, what was taken                   LaneSignals
//   4 KiB    memory of each lane, 2 KiB apart: cursors and words     LaneMemory
//   40 KiB   the peer's memory that is mapped here, for our kernels  ImportTable
//   64 KiB   lines of each lane, then chunks of each lane
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
inline constexpr uint32_t kWideChunk = 14;
inline constexpr uint32_t kNarrowChunk = 12;
inline constexpr uint32_t kWideSlots = 32;
inline constexpr uint32_t kNarrowSlots = 4;

static_assert(sizeof(onehop::detail::LaneSignals) <= kLanesAt);
static_assert(sizeof(onehop::detail::LaneMemory) <= kLaneStride);
static_assert(kLanesAt + OH_LANES * kLaneStride <= kImportsAt);
static_assert(kImportsAt + sizeof(onehop::detail::ImportTable) +
                  ((sizeof(onehop::detail::ImportEntry)) << kImportShift) <=
              kLinesAt);
static_assert(kWideSlots <= onehop::detail::kMostChunks);

struct LanePlace {
  uint64_t memory;  // offsets in the slab
  uint64_t lines;
  uint64_t chunks;
  uint32_t ring_shift;
  uint32_t chunk_shift;
  uint32_t chunk_slots;
};

ONEHOP_PURE uint64_t lane_bytes(bool wide) {
  return (uint64_t{16} << (wide ? kWideRing : kNarrowRing)) +
         (static_cast<uint64_t>(wide ? kWideSlots : kNarrowSlots)
          << (wide ? kWideChunk : kNarrowChunk));
}
inline constexpr uint64_t kLeastSlab = 2048 * kKiB;
inline constexpr uint64_t kWideSlab = kLinesAt + OH_LANES * lane_bytes(true);
static_assert(kLinesAt + lane_bytes(true) + (OH_LANES - 1) * lane_bytes(false) <= kLeastSlab);

ONEHOP_PURE LanePlace lane_place(uint64_t slab, uint32_t lane) {
  const bool others = slab >= kWideSlab;
  const bool wide = lane == 0 || others;
  LanePlace place{};
  place.memory = kLanesAt + lane * kLaneStride;
  place.lines = kLinesAt + (lane == 0 ? 0 : lane_bytes(true) + (lane - 1) * lane_bytes(others));
  place.ring_shift = wide ? kWideRing : kNarrowRing;
  place.chunks = place.lines + (uint64_t{16} << place.ring_shift);
  place.chunk_shift = wide ? kWideChunk : kNarrowChunk;
  place.chunk_slots = wide ? kWideSlots : kNarrowSlots;
  return place;
}

}  // namespace oh::kernels
