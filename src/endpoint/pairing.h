// SPDX-License-Identifier: Apache-2.0
//
// Pairing: how two endpoints become peers of each other. Within a process they share a segment of
// plain memory. On one host the initiator offers a segment and its control page over the Unix
// socket, both try whether they can read the other's memory, and each says what it found; whatever
// one side cannot do, neither does. Between hosts frames travel over UCX; where that fails, or the
// segment does, on the socket.
//
//   offer    purpose, limits, nonce's address, UCX's address   │ fds: segment, control page
//   answer   limits, nonce's address, UCX's address, verdict   │ fds: control page
//   confirm  verdict
//
// Between hosts, or where ONEHOP_TRANSPORT says so, each side tells where its worker of UCX is
// reached; the initiator sends a probe there and back before it confirms.
//
// Threading: an IncomingLink runs on the watcher's thread, the rest on the caller's.
#pragma once

#include <memory>

#include "control/listener.h"
#include "endpoint/peer.h"

namespace oh {

class Endpoint;

// A link that a communicator asks for, or that is meant for one.
struct LinkPurpose {
  Id communicator{};
  uint32_t from_rank = 0;
  uint32_t to_rank = 0;
  bool for_communicator() const { return communicator != Id{}; }
};

// Who an endpoint says it is.
Bytes encode_greeting(const PeerIdentity& identity);
Result<PeerIdentity> decode_greeting(ByteView bytes);

// What either side tells of itself. The offer has the purpose, too.
struct SideReport {
  LinkPurpose purpose;
  Limits limits;
  uint64_t asked_inline = 0;
  uint64_t nonce_address = 0;
  bool segment = false;  // it is mapped and ready here
  bool reaches = false;  // we reach the other side's memory
  bool cma_allowed = false;
  bool cuda_ipc_allowed = false;
  std::string why_no_segment;
  bool ucx_allowed = false;
  bool ucx = false;        // it is used
  UcxChannel::Remote way;  // without an address: no UCX here
  std::string why_no_ucx;
  std::string gpu;  // UUID of the one the endpoint is on; empty: none
};
Bytes encode_report(const SideReport& report);
Result<SideReport> decode_report(ByteView bytes);

// The initiator's side; blocks until the link is up or the deadline has passed.
Result<std::shared_ptr<Peer>> pair_with(Endpoint& endpoint, const Address& address,
                                        const LinkPurpose& purpose, Deadline deadline);
// Two endpoints of this process, or one with itself.
Result<std::shared_ptr<Peer>> pair_within(const std::shared_ptr<Endpoint>& from,
                                          const std::shared_ptr<Endpoint>& to,
                                          const LinkPurpose& purpose);
// The acceptor's side.
Result<std::unique_ptr<IncomingLink>> pair_incoming(std::shared_ptr<Endpoint> endpoint,
                                                    IncomingOffer offer);

}  // namespace oh
