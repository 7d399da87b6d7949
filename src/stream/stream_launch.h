// SPDX-License-Identifier: Apache-2.0
//
// Launches operations of the stream domain: assigns blocks to each, and orders launches on one half
// of a lane.
//
// Threading: any thread.
#pragma once

#include <memory>
#include <vector>

#include "endpoint/endpoint.h"
#include "stream/stream_layout.h"

namespace oh {

// An operation to launch, and the objects that must live until then.
struct PendingOp {
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<Peer> peer;
  cuda::Stream stream = nullptr;
  bool capturing = false;
  Deadline deadline = Deadline::never();
  kernels::StreamOp op{};
  bool expects_put = false;  // a receive whose message the peer will probably put
};

inline LaneSide side_of(const kernels::StreamOp& op) {
  return op.kind == kernels::StreamKind::kSend ? LaneSide::kSend : LaneSide::kRecv;
}

// Waits until the lane is not being reset: the lane would refuse the operation. The caller may not
// know of the reset, since the peer may have begun it.
Status wait_for_reset(const PendingOp& one);
// Launches operations of one stream and one GPU as one kernel; those by proxy as a second kernel
// beside it.
Status launch(std::vector<PendingOp>& run);

}  // namespace oh
