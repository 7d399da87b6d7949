// SPDX-License-Identifier: Apache-2.0
//
// How operations of the stream domain become a launch: which blocks each gets, and in whose turn.
//
// Threading: any thread.
#pragma once

#include <memory>
#include <vector>

#include "endpoint/endpoint.h"

namespace oh {

// An operation that is to be launched, and who must live until it is.
struct PendingOp {
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<Peer> peer;
  cuda::Stream stream = nullptr;
  bool capturing = false;
  Deadline deadline = Deadline::never();
  kernels::StreamOp op{};
};

inline bool of_lane(const kernels::StreamOp& op) {
  return op.kind == kernels::StreamKind::kSend || op.kind == kernels::StreamKind::kRecv;
}
inline LaneSide side_of(const kernels::StreamOp& op) {
  return op.kind == kernels::StreamKind::kSend ? LaneSide::kSend : LaneSide::kRecv;
}

// What is launched while its lane is being reset would be refused there. Either side may reset it,
// so the caller need not know: this waits for the end.
Status wait_for_reset(const PendingOp& one);
// All of one stream and one GPU, as one kernel; what goes by proxy, as one beside it.
Status launch(std::vector<PendingOp>& run);

}  // namespace oh
