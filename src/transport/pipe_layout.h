// SPDX-License-Identifier: Apache-2.0
//
// The relay's pipe: buffers in host memory that both sides map, for bytes that cannot go straight
// from one buffer into the other: between host and device memory, and between devices that do not
// reach each other. One pipe per direction, filled and drained in order, however many transfers
// share it.
//
//   line i   word 8 | offset 8 | bytes 8 | slot 4 | sequence 4 | from owner 4
//   word     2 x lap: free for that lap     2 x lap + 1: full     (a free line of lap 0 is all
//   zero)
//
//   producer: takes position p (line p mod n, lap p / n), fills the buffer, then the word
//   consumer: takes position p, empties the buffer, then the word of the next lap
//
// Where both buffers are on devices that reach each other, but neither can be mapped, the bytes go
// through a slab in the consumer's device memory instead of the host's: staged, not relayed. Line i
// then stands for part i of the slab.
//
// Either word may be written by a copy engine behind its copy. The line names the transfer slot (in
// the half of the side that owns it), its sequence, and where in the message the bytes belong.
//
// Threading: one producing and one consuming side; each orders its threads by its pair lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace oh {

// A line's round (filled, seen, drained, seen) takes some 25 us, and a copy within a device up to 8
// us of the CPU: the sizes keep the engines busy in spite of both.
inline constexpr uint32_t kPipeLines = 8;
inline constexpr uint32_t kPipeChunk = 192 * 1024;
inline constexpr uint32_t kSlabChunk = 2 * 1024 * 1024;
inline constexpr uint32_t kSlabSize = kPipeLines * kSlabChunk;

struct alignas(64) PipeLine {
  std::atomic<uint64_t> word;
  uint64_t offset;
  uint64_t bytes;
  uint32_t slot;
  uint32_t sequence;
  uint32_t from_owner;  // the producer owns the slot
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

inline constexpr uint64_t pipe_free(uint64_t position) { return position / kPipeLines * 2; }
inline constexpr uint64_t pipe_full(uint64_t position) { return position / kPipeLines * 2 + 1; }
// What the consumer writes: free for the next lap.
inline constexpr uint64_t pipe_drained(uint64_t position) { return position / kPipeLines * 2 + 2; }

}  // namespace oh
