// SPDX-License-Identifier: Apache-2.0
#include "calls/atomic_calls.h"

#include "endpoint/endpoint.h"

namespace oh {

Result<uint64_t> run_atomic(Endpoint& endpoint, Peer& peer, const RemoteTarget& target,
                            uint64_t offset, const AtomicOp& op, Deadline deadline) {
  OH_RETURN_IF_ERROR(endpoint.usable());
  OH_RETURN_IF_ERROR(peer.usable());
  OH_RETURN_IF_ERROR(check_word(target, offset));
  Atomics& atomics = peer.operations().atomics();
  if (atomics.reaches(target)) return atomics.apply(target, offset, op);
  OH_ASSIGN_OR_RETURN(const uint32_t name, atomics.post(target, offset, op));
  Status lost;
  std::optional<Result<uint64_t>> answer;
  auto came = [&] {
    // Read the link's state before the answer: an answer sent before the peer was lost counts.
    lost = peer.usable();
    answer = atomics.take(name);
    return answer || !lost.ok();
  };
  const bool ended = endpoint.requests().wait_for(came, &peer, WaitKind::kOneSided, 0, deadline);
  if (answer) return std::move(*answer);
  atomics.abandon(name);
  if (ended) return lost;
  return timed_out(deadline.length(),
                   "%s did not answer an atomic operation, which it may carry out yet; %s",
                   peer.link().name.c_str(),
                   endpoint.requests().state_at_timeout(peer, {WaitKind::kOneSided, 0}).c_str());
}

}  // namespace oh
