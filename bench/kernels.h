// SPDX-License-Identifier: Apache-2.0
//
// The arguments of the benchmark's kernels.
//
// Threading: plain data.
#pragma once

#include <cstdint>

#include "onehop/lane.h"

namespace bench {

// A ping-pong or flow launch. Addresses are in the launching GPU's address space.
struct KernelPayload {
  uint64_t out;  // a multiple of 4, as is `in`
  uint64_t in;
  uint64_t bytes;
  uint64_t findings;  // address of a Findings
  uint32_t side;      // side 0 sends first
  uint32_t rounds;
  uint32_t corrupt;  // corrupts bytes of the last round; checked kernels only
  uint32_t both;     // flows: both directions at once
};
struct Findings {
  uint64_t wrong;  // bytes
  uint64_t fault;  // oh_lane_fault, or 0
  uint64_t word;   // used by side 1 to confirm a flow
};

constexpr uint32_t kClusterBlocks = 4;
constexpr uint32_t kMostThreads = 512;  // per block

// bench_lane_*: ping-pong. bench_flow_*: back-to-back messages from side 0 to side 1, whose last
// word confirms, or in both directions at once by two groups. Each exists as ..._warp, ..._block
// and ..._cluster (of kClusterBlocks blocks), and as ..._checked.
struct LaneArgs {
  oh_lane_handle lane;
  KernelPayload payload;
};

// bench_put: any number of blocks; each puts its part and signals once.
struct PutArgs {
  oh_lane_handle lane;
  oh_remote_memory remote;
  uint64_t data;
  uint64_t bytes;
  uint64_t slot;
};

// The floors' lines lie in the receiver's memory, 16 bytes each: 12 of payload and the message's
// number, which marks the line as valid. bench_line_send, bench_line_recv: any number of blocks.
// bench_line_pingpong, also as ..._checked: one block.
struct LineArgs {
  uint64_t mine;    // local lines, written by the other side
  uint64_t theirs;  // the other side's lines
  uint64_t count;   // LineCount in local memory
  uint64_t lines;   // per message; the payload has room for all of them
  KernelPayload payload;
};
struct LineCount {
  uint32_t received;  // messages
  uint32_t blocks;    // blocks of the current receive that have finished
};

}  // namespace bench
