// SPDX-License-Identifier: Apache-2.0
//
// The relay's pipe: buffers in host memory that both sides map, for bytes that cannot go straight
// from one buffer into the other: between host and device memory, and between devices that do not
// reach each other. One pipe per direction, filled and drained in order, however many transfers
// share it.
//
//   line i   word 8 | offset 8 | bytes 8 | slot 4 | sequence 4 | from owner 4 | lines 4
//   word     2 p + 1: position p is full     2 p + 2: it is empty     (smaller: of a lap before)
//
//   producer: takes the positions p, p + 1, ... (line p mod n) of a span, as many as `lines` says;
//             fills their buffers, then the word of p
//   consumer: empties the span that begins at p, then the word of p
//
// A span is filled and emptied with one copy each: what an engine needs between two copies is as
// much as the copy of a line. It does not go over the end of the lines.
//
// Where both buffers are on devices that reach each other, but neither can be mapped, the bytes go
// through a slab in the consumer's device memory instead of the host's: staged, not relayed. Line i
// then stands for part i of the slab.
//
// Either word may be written by a copy engine behind its copy. The line names the transfer slot (in
// the half of the side that owns it), its sequence, and where in the message the bytes belong.
//
// Threading: one producing and one consuming side; each orders its threads by its link lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace oh {

inline constexpr uint32_t kPipeLines = 8;
inline constexpr uint32_t kMostOfSpan =
    kPipeLines / 2;  // so that one is filled while one is emptied
inline constexpr uint32_t kPipeChunk = 192 * 1024;
inline constexpr uint32_t kSlabChunk = 2 * 1024 * 1024;
inline constexpr uint32_t kSlabSize = kPipeLines * kSlabChunk;

// What begins at a line.
struct PipeSpan {
  uint64_t offset;
  uint64_t bytes;
  uint32_t slot;
  uint32_t sequence;
  uint32_t from_owner;  // the producer owns the slot
  uint32_t lines;
};

struct alignas(64) PipeLine {
  std::atomic<uint64_t> word;
  PipeSpan span;
};

// The consumer's slab, once it has one.
struct alignas(64) PipeSlab {
  uint64_t address;              // in the consumer; written before the number
  std::atomic<uint32_t> number;  // of its export; 0: there is none
};

struct PipeLayout {
  alignas(4096) PipeLine lines[kPipeLines];
  PipeSlab slab;
  alignas(4096) uint8_t buffers[kPipeLines][kPipeChunk];
};

inline constexpr uint64_t pipe_full(uint64_t position) { return position * 2 + 1; }
inline constexpr uint64_t pipe_empty(uint64_t position) { return position * 2 + 2; }

}  // namespace oh
