// SPDX-License-Identifier: Apache-2.0
//
// The relay's pipe: bounce buffers in host memory that both sides map, for bytes that cannot be
// copied directly: between host and device memory, and between devices without peer access. All
// transfers of a direction share one pipe, which is filled and drained in order.
//
//   line i   word 8 | offset 8 | bytes 8 | slot 4 | sequence 4 | from owner 4 | lines 4
//   word     2 p + 1: position p is full     2 p + 2: it is empty     (smaller: of an earlier lap)
//
//   producer: takes the positions p, p + 1, ... (line p mod n) of a span of `lines` lines;
//             fills their buffers, then stores the word of p
//   consumer: drains the span that begins at p, then stores the word of p
//
// A span is filled by one copy and drained by one: the gap between two copies of an engine costs as
// much as the copy of a line. A span does not wrap around.
//
// If both buffers are on devices that reach each other but neither can be mapped, a slab in the
// consumer's device memory replaces the buffers: the transfer is staged, not relayed. Line i then
// stands for part i of the slab.
//
// A copy engine may store either word behind its copy. The line names the transfer slot (in the
// half of its owner), the slot's sequence, and the bytes' offset in the message.
//
// Threading: one producer and one consumer side; each serializes its threads by its link lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace oh {

inline constexpr uint32_t kPipeLines = 8;
inline constexpr uint32_t kMostOfSpan =
    kPipeLines / 2;  // one span is filled while another is drained
inline constexpr uint32_t kPipeChunk = 192 * 1024;
inline constexpr uint32_t kSlabChunk = 2 * 1024 * 1024;
inline constexpr uint32_t kSlabSize = kPipeLines * kSlabChunk;

// The span that begins at a line.
struct PipeSpan {
  uint64_t offset;
  uint64_t bytes;
  uint32_t slot;
  uint32_t sequence;
  uint32_t from_owner;  // 1: the producer owns the slot
  uint32_t lines;
};

struct alignas(64) PipeLine {
  std::atomic<uint64_t> word;
  PipeSpan span;
};

// The consumer's slab, if it has one.
struct alignas(64) PipeSlab {
  uint64_t address;              // in the consumer's process; written before the number
  std::atomic<uint32_t> number;  // of its export; 0: no slab
};

struct PipeLayout {
  alignas(4096) PipeLine lines[kPipeLines];
  PipeSlab slab;
  alignas(4096) uint8_t buffers[kPipeLines][kPipeChunk];
};

inline constexpr uint64_t pipe_full(uint64_t position) { return position * 2 + 1; }
inline constexpr uint64_t pipe_empty(uint64_t position) { return position * 2 + 2; }

}  // namespace oh
