// SPDX-License-Identifier: Apache-2.0
#include "request.h"

#include <nanobind/stl/string.h>

#include <string>

#include "after.h"
#include "errors.h"

namespace onehop::python {
namespace {

oh_status status_now(const PyRequest& self) {
  WithoutGil release;
  return oh_request_test(self.operation().handle());
}

bool test(PyRequest& self) {
  oh_status status = status_now(self);
  if (status == OH_IN_PROGRESS) return false;
  self.operation().try_release();
  check(status);
  return true;
}

PyMessage wait(PyRequest& self, nb::handle timeout) {
  Operation& operation = self.operation();
  Patience patience(timeout_ns(timeout, operation.context->default_timeout_ns()));
  oh_status status = wait_for_end(operation, patience);
  std::string text = status == OH_OK ? std::string() : patience.of_all_slices(oh_error_text());
  operation.try_release();
  if (status != OH_OK) {
    // The text was saved first: releasing a buffer may run code that calls the library.
    throw_status(status, text);
  }
  return message_of(operation);
}

// Waits in slices and runs signal handlers in between. `poll` leaves the request in flight, `last`
// ends it.
template <typename Poll, typename Last>
oh_status in_slices(Patience& patience, const Poll& poll, const Last& last) {
  int64_t slice = patience.slice();
  while (true) {
    oh_status status;
    {
      WithoutGil release;
      status = poll(slice);
    }
    if (status != OH_IN_PROGRESS) return status;
    if (!patience.more()) {
      WithoutGil release;
      return last(1);
    }
    slice = patience.next();
  }
}

void wait_enqueued(PyRequest& self, nb::handle stream, nb::handle timeout) {
  void* stream_handle = stream_of(stream);
  Operation& operation = self.operation();
  Patience patience(timeout_ns(timeout, operation.context->default_timeout_ns()));
  oh_request* handle = operation.handle();
  oh_status status = in_slices(
      patience,
      [&](int64_t slice) { return oh_request_poll_enqueued(handle, stream_handle, slice); },
      [&](int64_t slice) { return oh_request_wait_enqueued(handle, stream_handle, slice); });
  std::string text = status == OH_OK ? std::string() : patience.of_all_slices(oh_error_text());
  operation.try_release();
  if (status != OH_OK) throw_status(status, text);
}

bool cancel(PyRequest& self) {
  oh_status status;
  {
    WithoutGil release;
    status = oh_request_cancel(self.operation().handle());
  }
  if (status != OH_AGAIN) check(status);
  self.operation().try_release();
  return status == OH_OK;
}

std::string message_text(const PyMessage& self) {
  const oh_message& value = self.value;
  return "Message(nbytes=" + std::to_string(value.size) + ", tag=" + std::to_string(value.tag) +
         ", source=" +
         (value.rank >= 0 ? std::to_string(value.rank) : std::to_string(value.peer_id)) +
         ", path='" + oh_path_name(value.path) + "')";
}

void bind_message(nb::module_& module) {
  nb::class_<PyMessage>(module, "Message", "The result of a receive or of a finished request.")
      .def_prop_ro(
          "nbytes", [](const PyMessage& self) { return self.value.size; }, "Bytes of the message.")
      .def_prop_ro(
          "tag", [](const PyMessage& self) { return self.value.tag; }, "The tag it was sent with.")
      .def_prop_ro(
          "source",
          [](const PyMessage& self) {
            return self.value.rank >= 0 ? self.value.rank
                                        : static_cast<int64_t>(self.value.peer_id);
          },
          "The other side: its rank in a communicator, otherwise the id of its Peer.")
      .def_prop_ro(
          "peer_id", [](const PyMessage& self) { return self.value.peer_id; },
          "The id of the Peer.")
      .def_prop_ro(
          "path", [](const PyMessage& self) { return oh_path_name(self.value.path); },
          "The path that was taken, such as \"inline\" or \"shm\".")
      .def_prop_ro(
          "seconds", [](const PyMessage& self) { return double(self.value.duration_ns) / 1e9; },
          "Of a request, from its post to its end. 0.0: not measured, because it was\n"
          "shorter than 128 KiB.")
      .def("__repr__", message_text);
}

uintptr_t key(const PyRequest& self) {
  return reinterpret_cast<uintptr_t>(self.operation().handle());
}

nb::list take_ended(PyRequest& self) {
  nb::list keys;
  oh_request* ended[64];
  size_t count;
  do {
    count = std::size(ended);
    check(oh_endpoint_take_ended(self.operation().context->endpoint().get(), ended, &count));
    for (size_t i = 0; i < count; ++i) keys.append(reinterpret_cast<uintptr_t>(ended[i]));
  } while (count == std::size(ended));
  return keys;
}

// Methods for event loops.
void bind_events(nb::class_<PyRequest>& type) {
  type.def(
          "__await__",
          [](nb::handle self) { return nb::module_::import_("onehop.aio").attr("wait")(self); },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, Message]"),
          "Waits in asyncio, without a thread. A task that is cancelled cancels the request.")
      .def(
          "arm",
          [](PyRequest& self) {
            WithoutGil release;
            check(oh_request_arm(self.operation().handle()));
          },
          "Announces its end on the endpoint's event descriptor, and starts the progress\n"
          "thread. For event loops other than asyncio's.")
      .def_prop_ro(
          "event_fd",
          [](PyRequest& self) {
            int fd = -1;
            check(oh_endpoint_event_fd(self.operation().context->endpoint().get(), &fd));
            return fd;
          },
          "The endpoint's event descriptor for requests that were given to arm(): see "
          "Endpoint.event_fd.")
      .def(
          "clear_event",
          [](PyRequest& self) {
            (void)oh_endpoint_clear_event(self.operation().context->endpoint().get());
          },
          "Makes the event descriptor unreadable again. Then test all armed requests.")
      .def(
          "arm_listed",
          [](PyRequest& self) {
            WithoutGil release;
            check(oh_request_arm_listed(self.operation().handle()));
          },
          "Makes ended_fd readable once it has ended, and starts the progress thread;\n"
          "take_ended() then returns its key. asyncio takes them: do not use one endpoint\n"
          "in asyncio and in another loop that takes them.")
      .def_prop_ro(
          "ended_fd",
          [](PyRequest& self) {
            int fd = -1;
            check(oh_endpoint_ended_fd(self.operation().context->endpoint().get(), &fd));
            return fd;
          },
          "A descriptor of the endpoint, readable while take_ended() has something to\n"
          "return.")
      .def_prop_ro("key", key, "The number by which take_ended() identifies it, while it exists.")
      .def("take_ended", take_ended, nb::sig("def take_ended(self) -> list[int]"),
           "Makes ended_fd unreadable again. Returns the keys of the endpoint's requests\n"
           "that were passed to arm_listed(), have ended, and were not returned before.");
}

}  // namespace

oh_status wait_for_end(Operation& operation, Patience& patience) {
  oh_request* handle = operation.handle();
  return in_slices(
      patience, [&](int64_t slice) { return oh_request_poll(handle, slice); },
      [&](int64_t slice) { return oh_request_wait(handle, slice); });
}

PyMessage finish(std::unique_ptr<Operation> operation, Patience& patience) {
  oh_status status;
  try {
    status = wait_for_end(*operation, patience);
  } catch (nb::python_error&) {
    {
      WithoutGil release;
      if (oh_request_cancel(operation->handle()) == OH_AGAIN) {
        (void)oh_request_wait(operation->handle(), 1);
      }
    }
    orphans().adopt(std::move(operation));
    throw;
  }
  if (status == OH_OK) return message_of(*operation);
  std::string text = patience.of_all_slices(oh_error_text());
  orphans().adopt(std::move(operation));
  throw_status(status, text);
}

PyMessage message_of(Operation& operation) {
  PyMessage message{detail::sized<oh_message>()};
  check(oh_request_message(operation.handle(), &message.value));
  return message;
}

void bind_request(nb::module_& module) {
  bind_message(module);
  nb::class_<PyRequest> type(
      module, "Request",
      "One operation in flight. It keeps its buffer alive. If it is dropped before its\n"
      "end, the library keeps the buffer until it is free. It can be awaited in\n"
      "asyncio.");
  type.def("test", test,
           "Makes progress and returns whether it has ended. Raises the error of a failed\n"
           "operation.")
      .def("wait", wait, nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def wait(self, timeout: float | None = ...) -> Message"),
           "Waits until it has ended. timeout: seconds; None: no limit. The deadline ends\n"
           "the operation: TimeoutError, or OperationError with Status.IN_DOUBT while the\n"
           "peer may still access the buffer. Ctrl-C leaves it in flight.")
      .def("cancel", cancel,
           "Ends it; wait() then raises OperationError with Status.CANCELLED. Returns False\n"
           "if it is too late: it has ended, or it will end by itself.")
      .def(
          "stream_wait",
          [](PyRequest& self, nb::handle stream) {
            void* handle = stream_of(stream);
            WithoutGil release;
            check(oh_request_stream_wait(self.operation().handle(), handle));
          },
          nb::arg("stream").none(),
          nb::sig("def stream_wait(self, stream: onehop.devices.Stream) -> None"),
          "Makes a CUDA stream wait: work enqueued from now on runs after the request has\n"
          "ended. The host does not wait. The stream continues however the request ends;\n"
          "test() and wait() report errors. Keep the buffer until the request has ended.\n\n"
          "Deadlock hazard: until then no thread may make a call that holds the driver's\n"
          "lock while it waits for the device, such as cudaFree and, unless\n"
          "CUDA_MODULE_LOADING=EAGER, the first launch of a kernel. See wait_enqueued().\n\n"
          "InvalidArgument: the endpoint has no GPU, or the stream is being captured.")
      .def("wait_enqueued", wait_enqueued, nb::arg("stream").none(),
           nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def wait_enqueued(self, stream: onehop.devices.Stream, timeout: float | None = "
                   "...) -> None"),
           "Makes a CUDA stream wait: work enqueued from now on runs after the request has\n"
           "ended. The host waits only until the copy (ours or the peer's) is enqueued on a\n"
           "copy engine. From then on no thread of either process can delay it, not even by\n"
           "the first launch of a kernel. If the message does not go by one copy of an\n"
           "engine, the host waits for its end.\n\n"
           "Until the call returns, timeout, errors and Ctrl-C are as in wait(). Afterwards\n"
           "test() and wait() report errors, and the stream continues however the request\n"
           "ends. Keep the buffer until the request has ended. InvalidArgument: the endpoint\n"
           "has no GPU, or the stream is being captured.")
      .def_prop_ro(
          "buffer_released", [](PyRequest& self) { return self.operation().try_release(); },
          "Whether it has ended and nothing accesses its buffer any more.")
      .def_prop_ro(
          "done", [](PyRequest& self) { return status_now(self) != OH_IN_PROGRESS; },
          "Whether it has ended, with or without an error. Makes progress; never raises the\n"
          "operation's error.")
      .def_prop_ro("status", status_now,
                   "The present status: Status.IN_PROGRESS until it has ended.")
      .def_prop_ro(
          "message", [](PyRequest& self) { return message_of(self.operation()); },
          "The Message of an operation that has succeeded.")
      .def("__repr__", [](PyRequest& self) {
        return std::string("<onehop.Request ") + oh_status_name(status_now(self)) + ">";
      });
  bind_events(type);
}

}  // namespace onehop::python
