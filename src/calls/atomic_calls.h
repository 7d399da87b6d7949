// SPDX-License-Identifier: Apache-2.0
//
// One atomic operation on a peer's host memory, from the call to its answer.
//
// Threading: any thread.
#pragma once

#include "base/clock.h"
#include "one_sided/atomics.h"

namespace oh {

class Endpoint;
class Peer;

// What was at `offset`, which lies within the region. OH_ERR_TIMEOUT: it may be carried out yet;
// OH_ERR_PEER_LOST: it may have been.
Result<uint64_t> run_atomic(Endpoint& endpoint, Peer& peer, const RemoteTarget& target,
                            uint64_t offset, const AtomicOp& op, Deadline deadline);

}  // namespace oh
