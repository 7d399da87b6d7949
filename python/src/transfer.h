// SPDX-License-Identifier: Apache-2.0
//
// Two-sided transfers, as peers, endpoints and communicators offer them; and what Peer objects are.
#pragma once

#include <memory>
#include <string>

#include "request.h"

namespace onehop::python {

// A connection, as all its Python objects share it.
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

// 0 to OH_TAG_MAX, or OH_ANY_TAG; the library says which fits where.
uint64_t tag_of(nb::handle tag);
// Of a message to send.
uint64_t send_tag_of(nb::handle tag);

// The arguments of a transfer, as Python gave them.
struct Transfer {
  nb::handle buffer;
  nb::handle tag;
  nb::handle after;
};

void send(Link& link, const Transfer& transfer, nb::handle timeout);
PyMessage recv(Link& link, const Transfer& transfer, nb::handle timeout);
PyRequest isend(Link& link, const Transfer& transfer);
PyRequest irecv(Link& link, const Transfer& transfer);
// From any source.
PyMessage recv_any(const std::shared_ptr<Context>& context, const Transfer& transfer,
                   nb::handle timeout);
PyRequest irecv_any(const std::shared_ptr<Context>& context, const Transfer& transfer);
// Of a message that no receive is posted for.
PyMessage probe(Link& link, nb::handle tag, nb::handle timeout);
PyMessage probe_any(const std::shared_ptr<Context>& context, nb::handle tag, nb::handle timeout);

}  // namespace onehop::python
