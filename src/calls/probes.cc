// SPDX-License-Identifier: Apache-2.0
#include "calls/probes.h"

#include "endpoint/endpoint.h"
#include "link/tags.h"

namespace oh {

Status wait_signal(Endpoint& endpoint, Peer& peer, uint32_t slot, uint64_t count,
                   Deadline deadline) {
  Status lost;
  auto came = [&] {
    // Read the link's state first: signals sent before the peer was lost count.
    lost = peer.usable();
    if (!peer.operations().one_sided().take_signals(slot, count)) return !lost.ok();
    lost = {};
    return true;
  };
  if (!endpoint.requests().wait_for(came, &peer, WaitKind::kSignal, slot, deadline)) {
    return timed_out(deadline.length(), "%llu signals on slot %u from %s; %s",
                     static_cast<unsigned long long>(count), slot, peer.link().name.c_str(),
                     endpoint.requests().state_at_timeout(peer, {WaitKind::kSignal, slot}).c_str());
  }
  return lost;
}

Result<bool> has_signals(Peer& peer, uint32_t slot, uint64_t count) {
  // Read the link's state first: signals sent before the peer was lost count.
  Status lost = peer.usable();
  if (peer.operations().one_sided().has_signals(slot, count)) return true;
  OH_RETURN_IF_ERROR(lost);
  return false;
}

Result<bool> has_message(Peer& peer, uint64_t tag, Receiver::Announced* found) {
  // Read the link's state first: a message sent before the peer was lost counts.
  Status lost = peer.usable();
  std::optional<Receiver::Announced> message = peer.operations().messages().probe(tag);
  if (message) {
    if (found) *found = *message;
    return true;
  }
  OH_RETURN_IF_ERROR(lost);
  return false;
}

Status probe(Endpoint& endpoint, Peer& peer, uint64_t tag, Deadline deadline,
             Receiver::Announced* found) {
  Result<bool> there = false;
  auto came = [&] {
    there = has_message(peer, tag, found);
    return !there.ok() || *there;
  };
  if (!endpoint.requests().wait_for(came, &peer, WaitKind::kRecv, tag, deadline)) {
    return timed_out(deadline.length(), "no message with %s came from %s; %s",
                     tag_text(tag).c_str(), peer.link().name.c_str(),
                     endpoint.requests().state_at_timeout(peer, {WaitKind::kRecv, tag}).c_str());
  }
  return there.status();
}

Result<std::shared_ptr<Peer>> probe_any(Endpoint& endpoint, uint64_t tag, Deadline deadline,
                                        Receiver::Announced* found) {
  std::shared_ptr<Peer> source;
  auto came = [&] {
    std::shared_ptr<const Endpoint::Peers> all = endpoint.peers();
    for (const std::shared_ptr<Peer>& peer : *all) {
      Result<bool> there = has_message(*peer, tag, found);
      if (!there.ok() || !*there) continue;
      source = peer;
      return true;
    }
    return !endpoint.is_usable();
  };
  if (!endpoint.requests().wait_for(came, nullptr, WaitKind::kRecv, tag, deadline)) {
    return timed_out(deadline.length(), "no message with %s came from %s. %s",
                     tag_text(tag).c_str(), peers_text(endpoint).c_str(), kIfOnlyLate);
  }
  if (!source) return error(OH_ERR_CLOSED, "the endpoint was closed");
  return source;
}

}  // namespace oh
