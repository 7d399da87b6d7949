// SPDX-License-Identifier: Apache-2.0
//
// Two-sided transfers of peers, endpoints and communicators; and the state of Peer objects.
#pragma once

#include <memory>
#include <string>

#include "request.h"

namespace onehop::python {

// A link, shared by all its Python objects.
struct Link : std::enable_shared_from_this<Link> {
  std::shared_ptr<Context> context;
  Owned<Peer> peer;
  uint64_t id = 0;
  int64_t rank = -1;
  std::string label;

  static std::shared_ptr<Link> of(std::shared_ptr<Context> context, Peer peer);
  oh_peer* get() const { return peer->get(); }
};

struct PyPeer {
  std::shared_ptr<Link> link;
};

// Converts a tag: 0 to OH_TAG_MAX, or OH_ANY_TAG. The library checks which of them a call accepts.
uint64_t tag_of(nb::handle tag);
// Converts the tag of a message to send.
uint64_t send_tag_of(nb::handle tag);

// The Python arguments of a transfer.
struct Transfer {
  nb::handle buffer;
  nb::handle tag;
  nb::handle after;
};

void send(Link& link, const Transfer& transfer, nb::handle timeout);
PyMessage recv(Link& link, const Transfer& transfer, nb::handle timeout);
PyRequest isend(Link& link, const Transfer& transfer);
PyRequest irecv(Link& link, const Transfer& transfer);
// Receives from any source.
PyMessage recv_any(const std::shared_ptr<Context>& context, const Transfer& transfer,
                   nb::handle timeout);
PyRequest irecv_any(const std::shared_ptr<Context>& context, const Transfer& transfer);
// Describes an unexpected message without receiving it.
PyMessage probe(Link& link, nb::handle tag, nb::handle timeout);
PyMessage probe_any(const std::shared_ptr<Context>& context, nb::handle tag, nb::handle timeout);

}  // namespace onehop::python
