// SPDX-License-Identifier: Apache-2.0
//
// What has come from peers and no receive has taken: signals and unexpected messages. What a peer
// sent before it was lost counts.
//
// Threading: any thread.
#pragma once

#include <memory>

#include "base/clock.h"
#include "message/receiver.h"

namespace oh {

class Endpoint;
class Peer;

// Takes `count` signals from the slot. OH_ERR_TIMEOUT: they did not come.
Status wait_signal(Endpoint& endpoint, Peer& peer, uint32_t slot, uint64_t count,
                   Deadline deadline);
// Waits for an unexpected message; tells about it, and leaves it.
Status probe(Endpoint& endpoint, Peer& peer, uint64_t tag, Deadline deadline,
             Receiver::Announced* found);
Result<std::shared_ptr<Peer>> probe_any(Endpoint& endpoint, uint64_t tag, Deadline deadline,
                                        Receiver::Announced* found);

// Whether they are there now; a failure says that they will not come.
Result<bool> has_signals(Peer& peer, uint32_t slot, uint64_t count);
Result<bool> has_message(Peer& peer, uint64_t tag, Receiver::Announced* found);

}  // namespace oh
