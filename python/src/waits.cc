// SPDX-License-Identifier: Apache-2.0
//
// Waits for several requests, for notifications and for messages of unknown size; requests that end
// when an item is available; and the same in asyncio, through onehop.aio.
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "arguments.h"
#include "bytes.h"
#include "endpoint.h"
#include "errors.h"

namespace onehop::python {
namespace {

// The handles of Python requests, and references that keep them.
struct Requests {
  explicit Requests(nb::handle given) {
    if (!nb::isinstance<nb::iterable>(given)) refuse(given);
    for (nb::handle each : nb::borrow<nb::iterable>(given)) {
      if (!nb::isinstance<PyRequest>(each)) refuse(each);
      objects.append(each);
      operations.push_back(&nb::cast<PyRequest&>(each).operation());
      handles.push_back(operations.back()->handle());
    }
  }
  [[noreturn]] static void refuse(nb::handle given) {
    throw TypeMismatch("requests is or contains a " + name_of_type(given) +
                       ": give a list of onehop.Request");
  }
  int64_t default_timeout_ns() const {
    return operations.empty() ? 0 : operations.front()->context->default_timeout_ns();
  }

  nb::list objects;
  std::vector<Operation*> operations;
  std::vector<oh_request*> handles;
};

nb::list wait_all(nb::handle given, nb::handle timeout) {
  Requests requests(given);
  Patience patience(timeout_ns(timeout, requests.default_timeout_ns()));
  int64_t slice = patience.first();
  oh_status status;
  while (true) {
    {
      WithoutGil release;
      status = oh_request_poll_all(requests.handles.data(), requests.handles.size(), slice);
    }
    if (status != OH_IN_PROGRESS) break;
    if (!patience.more()) {
      WithoutGil release;
      status = oh_request_wait_all(requests.handles.data(), requests.handles.size(), 1);
      break;
    }
    slice = patience.next();
  }
  std::string text = status == OH_OK ? std::string() : patience.of_all_slices(oh_error_text());
  for (Operation* operation : requests.operations) operation->try_release();
  if (status != OH_OK) throw_status(status, text);
  nb::list messages;
  for (Operation* operation : requests.operations) messages.append(message_of(*operation));
  return messages;
}

size_t wait_any(nb::handle given, nb::handle timeout) {
  Requests requests(given);
  Patience patience(timeout_ns(timeout, requests.default_timeout_ns()));
  int64_t slice = patience.first();
  while (true) {
    oh_status status;
    size_t index = 0;
    {
      WithoutGil release;
      status = oh_request_poll_any(requests.handles.data(), requests.handles.size(), slice, &index);
    }
    if (status == OH_OK) return index;
    if (status != OH_IN_PROGRESS) raise(status);
    if (!patience.more()) {
      throw TimeoutError(OH_ERR_TIMEOUT, patience.deadline_passed() + "none of " +
                                             std::to_string(requests.handles.size()) +
                                             " requests has ended; they go on");
    }
    slice = patience.next();
  }
}

nb::tuple wait_notification(PyEndpoint& self, nb::handle timeout) {
  self.context->check();
  Bytes bytes(2048);
  size_t size = 0;
  auto from = detail::sized<oh_message>();
  wait_in_slices(timeout_ns(timeout, self.context->default_timeout_ns()), [&](int64_t slice) {
    oh_status status;
    do {
      bytes.resize(std::max(bytes.size(), size));  // a longer one stays queued until there is room
      size = bytes.size();
      status = oh_endpoint_wait_notification(self.context->endpoint().get(), bytes.data(), &size,
                                             &from, slice);
    } while (status == OH_ERR_RANGE && size > bytes.size());
    return status;
  });
  int64_t source = from.rank >= 0 ? from.rank : static_cast<int64_t>(from.peer_id);
  return nb::make_tuple(source, nb::bytes(bytes.data(), size));
}

// Posts with `post` and returns the request.
template <typename Post>
PyRequest ready(const std::shared_ptr<Context>& context, Post post) {
  context->check();
  auto operation = std::make_unique<Operation>();
  operation->context = context;
  oh_request* request = nullptr;
  check(post(&request));
  operation->request = Owned<Request>(Request(request));
  return PyRequest(std::move(operation));
}

// Returns a function of onehop.aio. Raises for an invalid timeout before a coroutine exists.
nb::object aio(const char* name, nb::handle timeout) {
  timeout_ns(timeout, OH_TIMEOUT_DEFAULT);
  return nb::module_::import_("onehop.aio").attr(name);
}

#define OH_PYTHON_COROUTINE(result) "collections.abc.Coroutine[typing.Any, typing.Any, " result "]"

}  // namespace

PyMessage probe(Link& link, nb::handle tag, nb::handle timeout) {
  PyMessage message{detail::sized<oh_message>()};
  uint64_t wanted = tag_of(tag);
  wait_in_slices(timeout_ns(timeout, link.context->default_timeout_ns()), [&](int64_t slice) {
    return oh_peer_probe(link.get(), wanted, slice, &message.value);
  });
  return message;
}

PyMessage probe_any(const std::shared_ptr<Context>& context, nb::handle tag, nb::handle timeout) {
  context->check();
  PyMessage message{detail::sized<oh_message>()};
  uint64_t wanted = tag_of(tag);
  wait_in_slices(timeout_ns(timeout, context->default_timeout_ns()), [&](int64_t slice) {
    return oh_endpoint_probe(context->endpoint().get(), wanted, slice, &message.value);
  });
  return message;
}

void bind_waits(nb::module_& module, nb::class_<PyEndpoint>& endpoint) {
  module.def("wait_all", wait_all, nb::arg("requests").none(),
             nb::arg("timeout").none() = nb::ellipsis(),
             nb::sig("def wait_all(requests: collections.abc.Iterable[Request], timeout: float | "
                     "None = ...) -> list[Message]"),
             "Waits until all requests have ended, and returns their Messages in order. The\n"
             "deadline ends the others, as in Request.wait. Raises the error of the first\n"
             "request in the list that failed, after all have ended. The requests may belong\n"
             "to different endpoints. Ctrl-C leaves them in flight.\n\n" OH_PYTHON_TIMEOUT);
  module.def("wait_any", wait_any, nb::arg("requests").none(),
             nb::arg("timeout").none() = nb::ellipsis(),
             nb::sig("def wait_any(requests: collections.abc.Iterable[Request], timeout: float | "
                     "None = ...) -> int"),
             "Waits until one of the requests has ended, with or without an error, and returns\n"
             "the index of the first that has. TimeoutError at the deadline; all stay in\n"
             "flight. The requests may belong to different endpoints.\n\n" OH_PYTHON_TIMEOUT);
  endpoint
      .def("wait_notification", wait_notification, nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def wait_notification(self, timeout: float | None = ...) -> tuple[int, bytes]"),
           "Waits for the next notification and takes it: (source, bytes), as in\n"
           "Endpoint.notifications. " OH_PYTHON_TIMEOUT)
      .def(
          "probe",
          [](PyEndpoint& self, nb::handle tag, nb::handle timeout) {
            return probe_any(self.context, tag, timeout);
          },
          nb::arg("tag").none() = 0, nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig("def probe(self, tag: typing.SupportsIndex = 0, timeout: float | None = ...) -> "
                  "Message"),
          "The next message from any peer without a posted receive: see Peer.probe.")
      .def(
          "accept_ready",
          [](PyEndpoint& self) {
            return ready(self.context, [&](oh_request** request) {
              return oh_endpoint_accept_ready(self.context->endpoint().get(), request);
            });
          },
          "A Request that ends once accept() has a peer to return. It takes nothing:\n"
          "another thread may be faster.")
      .def(
          "notification_ready",
          [](PyEndpoint& self) {
            return ready(self.context, [&](oh_request** request) {
              return oh_endpoint_notification_ready(self.context->endpoint().get(), request);
            });
          },
          "A Request that ends once a notification has arrived. It takes nothing: another\n"
          "thread may be faster.")
      .def(
          "connect_async",
          [](nb::handle self, nb::handle address, nb::handle timeout) {
            return aio("connect", timeout)(self, address, timeout);
          },
          nb::arg("address").none(), nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig("def connect_async(self, address: onehop.buffers.Buffer, timeout: float | None = "
                  "...) -> " OH_PYTHON_COROUTINE("Peer")),
          "connect() in asyncio. Where the task is cancelled, a link that still comes is closed.")
      .def(
          "accept_async",
          [](nb::handle self, nb::handle timeout) { return aio("accept", timeout)(self, timeout); },
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig("def accept_async(self, timeout: float | None = ...) -> "  //
                  OH_PYTHON_COROUTINE("Peer")),
          "accept() in asyncio, without a thread.")
      .def(
          "wait_notification_async",
          [](nb::handle self, nb::handle timeout) {
            return aio("wait_notification", timeout)(self, timeout);
          },
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig("def wait_notification_async(self, timeout: float | None = ...) -> "  //
                  OH_PYTHON_COROUTINE("tuple[int, bytes]")),
          "wait_notification() in asyncio, without a thread.");
}

void bind_waits(nb::class_<PyPeer>& peer) {
  peer.def(
          "probe",
          [](PyPeer& self, nb::handle tag, nb::handle timeout) {
            return probe(*self.link, tag, timeout);
          },
          nb::arg("tag").none() = 0, nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig("def probe(self, tag: typing.SupportsIndex = 0, timeout: float | None = ...) -> "
                  "Message"),
          "Waits for an unexpected message (one without a posted receive), and returns its\n"
          "nbytes, tag and source. The message is not taken: a recv() with its tag gets it,\n"
          "unless another thread is faster.\n\n"
          "tag: 0 to 2**63 - 1, or onehop.ANY_TAG. " OH_PYTHON_TIMEOUT)
      .def(
          "message_ready",
          [](PyPeer& self, nb::handle tag) {
            return ready(self.link->context, [&](oh_request** request) {
              return oh_peer_message_ready(self.link->get(), tag_of(tag), request);
            });
          },
          nb::arg("tag").none() = 0,
          nb::sig("def message_ready(self, tag: typing.SupportsIndex = 0) -> Request"),
          "A Request that ends once probe() has a message to return. It takes nothing.")
      .def(
          "signal_ready",
          [](PyPeer& self, nb::handle given_slot, nb::handle given_count) {
            uint32_t slot = small_number(given_slot, kSlot);
            uint64_t count = whole_number(given_count, kCount);
            return ready(self.link->context, [&](oh_request** request) {
              return oh_peer_signal_ready(self.link->get(), slot, count, request);
            });
          },
          nb::arg("slot").none(), nb::arg("n").none() = 1,
          nb::sig("def signal_ready(self, slot: typing.SupportsIndex, n: typing.SupportsIndex = 1) "
                  "-> Request"),
          "A Request that ends once this side's slot has reached n. It takes nothing:\n"
          "wait_signal() does.")
      .def(
          "probe_async",
          [](nb::handle self, nb::handle tag, nb::handle timeout) {
            return aio("probe", timeout)(self, tag, timeout);
          },
          nb::arg("tag").none() = 0, nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig("def probe_async(self, tag: typing.SupportsIndex = 0, timeout: float | None = "
                  "...) -> "  //
                  OH_PYTHON_COROUTINE("Message")),
          "probe() in asyncio, without a thread.")
      .def(
          "wait_signal_async",
          [](nb::handle self, nb::handle slot, nb::handle count, nb::handle timeout) {
            return aio("wait_signal", timeout)(self, slot, count, timeout);
          },
          nb::arg("slot").none(), nb::arg("n").none() = 1,
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig("def wait_signal_async(self, slot: typing.SupportsIndex, n: typing.SupportsIndex "
                  "= 1, timeout: float | None = ...) "
                  "-> " OH_PYTHON_COROUTINE("None")),
          "wait_signal() in asyncio, without a thread. A task that is cancelled takes no signal.");
}

}  // namespace onehop::python
