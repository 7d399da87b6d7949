// SPDX-License-Identifier: Apache-2.0
//
// Calls of the stream domain by proxy: launches the kernel that submits their tickets.
//
// Threading: any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "endpoint/endpoint.h"

namespace oh {

struct ProxyCall {
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<Peer> peer;
  kernels::StreamOp op{};  // of op.lane only the lane's number and the timeout are used
  // Set for a put, get or atomic operation; `op` has its bytes and timeout. For an atomic operation
  // op.data is the operand, op.bytes the expected value, and op.size_to the address for the
  // previous value.
  std::optional<kernels::ProxyPlace> place = {};
};

// Launches calls of one stream and GPU, at most kMostProxied, as one kernel.
Status launch_by_proxy(const std::vector<ProxyCall>& calls, cuda::Stream stream, bool capturing);
// The same, concurrent with what `others` launches on the stream: neither waits for the other.
Status launch_beside(const std::vector<ProxyCall>& calls, cuda::Stream stream, bool capturing,
                     const std::function<Status()>& others);

}  // namespace oh
