// SPDX-License-Identifier: Apache-2.0
#include "transfer.h"

#include <string>

#include "arguments.h"
#include "errors.h"

namespace onehop::python {
namespace {

std::unique_ptr<Operation> begin(std::shared_ptr<Context> context, nb::handle buffer,
                                 Access access) {
  orphans().sweep();
  auto operation = std::make_unique<Operation>();
  operation->context = std::move(context);
  operation->local.acquire(*operation->context, buffer, access);
  return operation;
}

// Turns a blocking call whose first slice has passed into an operation: its request, with its own
// reference to the memory.
std::unique_ptr<Operation> go_on(Link& link, oh_request* request, const Local& local,
                                 Access access) {
  auto operation = std::make_unique<Operation>();
  operation->request = Owned<Request>(Request(request));
  operation->context = link.context;
  operation->local.share(local, access);
  return operation;
}

// Throws the error of a failed call. Keeps the buffer if it is in doubt.
[[noreturn]] void fail(Link& link, oh_status status, oh_request* request, const Local& local,
                       Access access) {
  std::string text = oh_error_text();
  if (request) orphans().adopt(go_on(link, request, local, access));
  throw_status(status, text);
}

// Posts a receive from any source.
std::unique_ptr<Operation> post_any(const std::shared_ptr<Context>& context,
                                    const Transfer& transfer) {
  auto operation = begin(context, transfer.buffer, Access::kWrite);
  uint64_t tag = tag_of(transfer.tag);
  const Local& local = operation->local;
  After after = local.after(transfer.after);
  {
    WithoutGil release;
    operation->request =
        Owned<Request>(context->endpoint().irecv(local.data(), local.size(), tag, after));
  }
  return operation;
}

}  // namespace

std::shared_ptr<Link> Link::of(std::shared_ptr<Context> context, Peer peer) {
  auto link = std::make_shared<Link>();
  oh_peer_info info = peer.info();
  link->id = info.id;
  link->rank = info.rank;
  link->label = info.label;
  link->context = std::move(context);
  link->peer = Owned<Peer>(std::move(peer));
  return link;
}

uint64_t tag_of(nb::handle tag) {
  return whole_number(tag, {"tag", "an integer, 0 to 2**63 - 1, or onehop.ANY_TAG"});
}

uint64_t send_tag_of(nb::handle tag) {
  return whole_number(tag, {"tag", "an integer, 0 to 2**63 - 1; ANY_TAG is for receives"});
}

void send(Link& link, const Transfer& transfer, nb::handle timeout) {
  orphans().sweep();
  Local local(*link.context, transfer.buffer, Access::kRead);
  uint64_t tag = send_tag_of(transfer.tag);
  Patience patience(timeout_ns(timeout, link.context->default_timeout_ns()));
  auto options = detail::with(Timeout(patience.first()), local.after(transfer.after));
  oh_request* request = nullptr;
  oh_status status;
  while (true) {
    {
      WithoutGil release;
      status = oh_peer_send_for(link.get(), local.data(), local.size(), tag, &options, &request);
    }
    // Too many sends are pending: retry, one slice at a time.
    if (status != OH_AGAIN) break;
    std::string text = oh_error_text();
    if (!patience.more()) throw TimeoutError(OH_ERR_TIMEOUT, patience.of_all_slices(text));
    options.timeout_ns = patience.next();
  }
  if (status == OH_OK) return;
  if (status != OH_IN_PROGRESS) fail(link, status, request, local, Access::kRead);
  patience.first_has_passed();
  finish(go_on(link, request, local, Access::kRead), patience);
}

PyMessage recv(Link& link, const Transfer& transfer, nb::handle timeout) {
  orphans().sweep();
  Local local(*link.context, transfer.buffer, Access::kWrite);
  uint64_t tag = tag_of(transfer.tag);
  Patience patience(timeout_ns(timeout, link.context->default_timeout_ns()));
  auto options = detail::with(Timeout(patience.first()), local.after(transfer.after));
  oh_request* request = nullptr;
  PyMessage message{detail::sized<oh_message>()};
  oh_status status;
  {
    WithoutGil release;
    status = oh_peer_recv_for(link.get(), local.data(), local.size(), tag, &options, &message.value,
                              &request);
  }
  if (status == OH_OK) return message;
  if (status != OH_IN_PROGRESS) fail(link, status, request, local, Access::kWrite);
  patience.first_has_passed();
  return finish(go_on(link, request, local, Access::kWrite), patience);
}

PyRequest isend(Link& link, const Transfer& transfer) {
  auto operation = begin(link.context, transfer.buffer, Access::kRead);
  uint64_t tag = send_tag_of(transfer.tag);
  const Local& local = operation->local;
  After after = local.after(transfer.after);
  {
    WithoutGil release;
    operation->request = Owned<Request>(link.peer->isend(local.data(), local.size(), tag, after));
  }
  return PyRequest(std::move(operation));
}

PyRequest irecv(Link& link, const Transfer& transfer) {
  auto operation = begin(link.context, transfer.buffer, Access::kWrite);
  uint64_t tag = tag_of(transfer.tag);
  const Local& local = operation->local;
  After after = local.after(transfer.after);
  {
    WithoutGil release;
    operation->request = Owned<Request>(link.peer->irecv(local.data(), local.size(), tag, after));
  }
  return PyRequest(std::move(operation));
}

PyMessage recv_any(const std::shared_ptr<Context>& context, const Transfer& transfer,
                   nb::handle timeout) {
  Patience patience(timeout_ns(timeout, context->default_timeout_ns()));
  return finish(post_any(context, transfer), patience);
}

PyRequest irecv_any(const std::shared_ptr<Context>& context, const Transfer& transfer) {
  return PyRequest(post_any(context, transfer));
}

}  // namespace onehop::python
