// SPDX-License-Identifier: Apache-2.0
//
// Calls of the stream domain by proxy: launches the kernel that hands in their tickets.
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
  kernels::StreamOp op{};  // of its lane's handle, the number and the timeout
  // Of a put or get: `op` has its bytes and timeout. Of an atomic operation `op` has as `data` the
  // value, as `bytes` what is expected, and where what was there goes.
  std::optional<kernels::ProxyPlace> place = {};
};

// Launches calls of one stream and GPU, at most kMostProxied, as one kernel.
Status launch_by_proxy(const std::vector<ProxyCall>& calls, cuda::Stream stream, bool capturing);
// The same concurrently with what `others` launches on the stream: neither waits for the other.
Status launch_beside(const std::vector<ProxyCall>& calls, cuda::Stream stream, bool capturing,
                     const std::function<Status()>& others);

}  // namespace oh
