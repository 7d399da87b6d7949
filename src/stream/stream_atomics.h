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
  uint64_t* before = nullptr;  // device memory for what was there; null: it is not wanted
  cuda::Stream stream = nullptr;
  uint64_t timeout_ns = UINT64_MAX;
  Deadline deadline = Deadline::never();  // of the call itself
};
// On device memory by a kernel, which needs a link with native atomics. On host memory by CPU
// instructions, where the link's streams go by proxy. What is refused has enqueued nothing.
Status atomic_by_stream(const std::shared_ptr<Endpoint>& endpoint,
                        const std::shared_ptr<Peer>& peer, const RemoteTarget& target,
                        const StreamAtomic& call);

// On device memory, by the same kernel, for which the calling thread waits. What was there.
// OH_ERR_TIMEOUT: it may be carried out yet.
Result<uint64_t> run_atomic_on_device(Endpoint& endpoint, Peer& peer, const RemoteTarget& target,
                                      uint64_t offset, const AtomicOp& op, Deadline deadline);

}  // namespace oh
