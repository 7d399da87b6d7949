// SPDX-License-Identifier: Apache-2.0
//
// Blocking atomic operations on a peer's host memory.
//
// Threading: any thread.
#pragma once

#include "base/clock.h"
#include "one_sided/atomics.h"

namespace oh {

class Endpoint;
class Peer;

// Returns the previous value at `offset`, which must lie within the region. OH_ERR_TIMEOUT: the
// peer may still execute the operation. OH_ERR_PEER_LOST: it may have executed it.
Result<uint64_t> run_atomic(Endpoint& endpoint, Peer& peer, const RemoteTarget& target,
                            uint64_t offset, const AtomicOp& op, Deadline deadline);

}  // namespace oh
