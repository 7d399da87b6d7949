// SPDX-License-Identifier: Apache-2.0
//
// Access to signals and unexpected messages that peers have sent and no receive has taken. Those
// sent before the peer was lost count.
//
// Threading: any thread.
#pragma once

#include <memory>

#include "base/clock.h"
#include "message/receiver.h"

namespace oh {

class Endpoint;
class Peer;

// Waits for `count` signals on the slot and consumes them. OH_ERR_TIMEOUT: too few arrived.
Status wait_signal(Endpoint& endpoint, Peer& peer, uint32_t slot, uint64_t count,
                   Deadline deadline);
// Waits for an unexpected message and describes it in `found`, without receiving it.
Status probe(Endpoint& endpoint, Peer& peer, uint64_t tag, Deadline deadline,
             Receiver::Announced* found);
Result<std::shared_ptr<Peer>> probe_any(Endpoint& endpoint, uint64_t tag, Deadline deadline,
                                        Receiver::Announced* found);

// Return whether the signals or the message have arrived; fail if they can no longer arrive.
Result<bool> has_signals(Peer& peer, uint32_t slot, uint64_t count);
Result<bool> has_message(Peer& peer, uint64_t tag, Receiver::Announced* found);

}  // namespace oh
