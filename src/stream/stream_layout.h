// SPDX-License-Identifier: Apache-2.0
//
// How a launch is divided: the blocks and teams of each of its operations.
//
// Threading: none; a function of its arguments.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/stream.h"

namespace oh {

inline bool of_lane(const kernels::StreamOp& op) {
  return op.kind == kernels::StreamKind::kSend || op.kind == kernels::StreamKind::kRecv;
}

// Whether a receive probably has nothing to copy. If its caller asks for the size, its message may
// be a short one, which goes by lines.
inline bool only_waits(const kernels::StreamOp& op, bool expects_put) {
  return expects_put && op.size_to == 0;
}

// An operation to divide.
struct LayoutOp {
  kernels::StreamOp* op;     // lay_out() sets first, teams and lane.follows
  const void* peer;          // operations of one peer, kind and lane are on the same half of a lane
  bool expects_put = false;  // a receive whose message the peer will probably put
  bool large = false;        // its message may be one that does not go by lines
  uint32_t most = 1;         // blocks of a message (ONEHOP_STREAM_BLOCKS)
  uint64_t per_block = 1;    // bytes of a message for each block (ONEHOP_STREAM_SHARE)
  LayoutOp* head = nullptr;  // for lay_out(): the first operation on the same half, or itself
  uint32_t blocks = 0;       // for lay_out(): of the head and all that follow it
};

struct LayoutGpu {
  uint32_t processors;
  bool clusters;
  bool begins_early;  // a kernel may run beside the one before it
};

// Bytes of the longest message that gets one team on a GPU with clusters, if its launch has no
// other operation.
inline constexpr uint64_t kMostOfOneTeam = 4 * 1024 * 1024;

// A grid of teams, each a cluster of `cluster` blocks of `threads` threads.
struct Layout {
  uint32_t teams = 0;
  uint32_t cluster = 1;
  uint32_t threads = 0;
};

// Operations on one half of a lane share their teams and follow each other.
Layout lay_out(std::span<LayoutOp> ops, const LayoutGpu& gpu);

}  // namespace oh
