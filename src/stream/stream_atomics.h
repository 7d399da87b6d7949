// SPDX-License-Identifier: Apache-2.0
//
// Atomic operations on 8 bytes of a peer's region: those of the stream domain, and those of the
// host domain that a kernel carries out.
//
// Threading: any thread.
#pragma once

#include <memory>

#include "endpoint/endpoint.h"

namespace oh {

struct StreamAtomic {
  uint64_t offset = 0;  // within the region
  AtomicOp op;
  uint64_t* before = nullptr;  // device memory for the previous value; null: not wanted
  cuda::Stream stream = nullptr;
  uint64_t timeout_ns = UINT64_MAX;
  Deadline deadline = Deadline::never();  // of the call itself
};
// On device memory a kernel carries out the operation, which requires a link with native atomics.
// On host memory CPU instructions do, which requires that the link's streams use a proxy. A call
// that is refused has enqueued nothing.
Status atomic_by_stream(const std::shared_ptr<Endpoint>& endpoint,
                        const std::shared_ptr<Peer>& peer, const RemoteTarget& target,
                        const StreamAtomic& call);

// Runs the same kernel on device memory and waits for it. Returns the previous value.
// OH_ERR_TIMEOUT: the operation may still be carried out.
Result<uint64_t> run_atomic_on_device(Endpoint& endpoint, Peer& peer, const RemoteTarget& target,
                                      uint64_t offset, const AtomicOp& op, Deadline deadline);

}  // namespace oh
