// SPDX-License-Identifier: Apache-2.0
//
// Pairing: establishes the link between two endpoints. Within a process they share a segment of
// plain memory. On one host the initiator offers a segment and its control page over the Unix
// socket; both sides then probe whether they can access the other's memory and report the result.
// The segment and UCX are each used only if both sides support them. Between hosts frames travel
// over UCX. If UCX, or the segment on one host, is not available, frames travel over the control
// socket.
//
//   offer    purpose, limits, nonce's address, UCX's address   │ fds: segment, control page
//   answer   limits, nonce's address, UCX's address, verdict   │ fds: control page
//   confirm  verdict
//
// Between hosts, or with ONEHOP_TRANSPORT=ucx, each side reports the address of its UCX worker; the
// initiator completes a round trip of a probe before it confirms.
//
// Threading: an IncomingLink runs on the watcher thread, the rest on the caller's thread.
#pragma once

#include <memory>

#include "control/listener.h"
#include "endpoint/peer.h"

namespace oh {

class Endpoint;

// The communicator and the ranks that a link is for; all zero if it is for none.
struct LinkPurpose {
  Id communicator{};
  uint32_t from_rank = 0;
  uint32_t to_rank = 0;
  bool for_communicator() const { return communicator != Id{}; }
};

// The identity that an endpoint sends in the hello.
Bytes encode_greeting(const PeerIdentity& identity);
Result<PeerIdentity> decode_greeting(ByteView bytes);

// The capabilities that each side reports. Only the offer carries the purpose.
struct SideReport {
  LinkPurpose purpose;
  Limits limits;
  uint64_t asked_inline = 0;
  uint64_t nonce_address = 0;
  bool segment = false;  // this side mapped the segment
  bool reaches = false;  // this side can access the peer's memory
  bool cma_allowed = false;
  bool cuda_ipc_allowed = false;
  std::string why_no_segment;
  bool ucx_allowed = false;
  bool ucx = false;        // this side uses UCX for the link
  UcxChannel::Remote way;  // address empty: no UCX on this side
  std::string why_no_ucx;
  std::string gpu;  // UUID of the endpoint's GPU; empty: none
};
Bytes encode_report(const SideReport& report);
Result<SideReport> decode_report(ByteView bytes);

// Initiator. Blocks until the link is established or the deadline has passed.
Result<std::shared_ptr<Peer>> pair_with(Endpoint& endpoint, const Address& address,
                                        const LinkPurpose& purpose, Deadline deadline);
// Links two endpoints of this process, or an endpoint with itself.
Result<std::shared_ptr<Peer>> pair_within(const std::shared_ptr<Endpoint>& from,
                                          const std::shared_ptr<Endpoint>& to,
                                          const LinkPurpose& purpose);
// Acceptor. The link is established when its IncomingLink is confirmed.
Result<std::unique_ptr<IncomingLink>> pair_incoming(std::shared_ptr<Endpoint> endpoint,
                                                    IncomingOffer offer);

}  // namespace oh
