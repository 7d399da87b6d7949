// SPDX-License-Identifier: Apache-2.0
//
// What the benchmark's own kernels are given, by the host that launches them.
//
// Threading: plain data.
#pragma once

#include <cstdint>

#include "onehop/lane.h"

namespace bench {

// A launch of messages to and fro. Addresses are the launching GPU's.
struct KernelPayload {
  uint64_t out;  // a multiple of 4, as is `in`
  uint64_t in;
  uint64_t bytes;
  uint64_t findings;  // of the kind below
  uint32_t side;      // 0 gives first
  uint32_t rounds;
  uint32_t corrupt;  // spoils bytes of the last round's; of the checked kernels
  uint32_t both;     // of a flow: both ways at once
};
struct Findings {
  uint64_t wrong;  // bytes
  uint64_t fault;  // oh_lane_fault, or 0
  uint64_t word;   // by which side 1 confirms a flow
};

constexpr uint32_t kClusterBlocks = 4;
constexpr uint32_t kMostThreads = 512;  // of a block

// bench_lane_*: messages to and fro; bench_flow_*: one after the other from side 0 to side 1, whose
// last word confirms, or both ways at once by two groups. Each of ..._warp, ..._block and
// ..._cluster (of kClusterBlocks blocks), and as ..._checked.
struct LaneArgs {
  oh_lane_handle lane;
  KernelPayload payload;
};

// bench_put: any number of blocks, each of which puts its part and signals once.
struct PutArgs {
  oh_lane_handle lane;
  oh_remote_memory remote;
  uint64_t data;
  uint64_t bytes;
  uint64_t slot;
};

// The floors' lines lie in the receiver's memory, 16 bytes each: 12 of payload and a number that
// tells whether they are this message's. bench_line_send, bench_line_recv: any number of blocks.
// bench_line_pingpong, also as ..._checked: one block.
struct LineArgs {
  uint64_t mine;    // lines that the other side writes
  uint64_t theirs;  // lines of the other side
  uint64_t count;   // LineCount in our memory
  uint64_t lines;   // of a message; the payload has room for all of them
  KernelPayload payload;
};
struct LineCount {
  uint32_t received;  // messages
  uint32_t blocks;    // of the receive under way that are through
};

}  // namespace bench
