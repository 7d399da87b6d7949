// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "arguments.h"
#include "bytes.h"
#include "endpoint.h"
#include "errors.h"
#include "held.h"

namespace onehop::python {
namespace {

PyRemoteRegion attach(PyPeer& self, nb::handle descriptor, nb::handle timeout) {
  const std::shared_ptr<Link>& link = self.link;
  link->context->check();
  Timeout limit{timeout_ns(timeout, link->context->default_timeout_ns())};
  RemoteRegion region = call_interruptibly(
      [link, bytes = from_bytes(descriptor), limit] { return link->peer->attach(bytes, limit); });
  size_t size = region.size();
  auto memory = std::make_shared<RemoteMemory>();
  memory->region = std::make_shared<Owned<RemoteRegion>>(std::move(region));
  return PyRemoteRegion{std::move(memory), 0, size};
}

void notify(PyPeer& self, nb::handle object, nb::handle timeout) {
  Link& link = *self.link;
  ByValue buffer(object);
  wait_in_slices(timeout_ns(timeout, link.context->default_timeout_ns()), [&](int64_t slice) {
    oh_transfer_options options = detail::with(Timeout{slice});
    return oh_peer_notify(link.get(), buffer.data(), buffer.size(), &options);
  });
}

void wait_signal(PyPeer& self, nb::handle given_slot, nb::handle given_count, nb::handle timeout) {
  uint32_t slot = small_number(given_slot, kSlot);
  uint64_t count = whole_number(given_count, kCount);
  Link& link = *self.link;
  wait_in_slices(timeout_ns(timeout, link.context->default_timeout_ns()), [&](int64_t slice) {
    return oh_peer_wait_signal(link.get(), slot, count, slice);
  });
}

nb::object async_error(PyPeer& self) {
  try {
    WithoutGil release;
    self.link->peer->check_async_error();
  } catch (const EndpointError&) {
    throw;
  } catch (const Error& error) {
    return exception_for(error);
  }
  return nb::none();
}

void close(PyPeer& self) {
  {
    WithoutGil release;
    self.link->peer->close();
  }
  orphans().sweep_all();
  sweep_all_held();
}

#define OH_PYTHON_BUFFER                                                        \
  "buffer: a Region or a slice of one; a C-contiguous object with the buffer\n" \
  "protocol; a tensor with `__dlpack__`; or an array with\n"                    \
  "`__cuda_array_interface__`. GPU memory needs an Endpoint with device=... ."

void bind_messages(nb::class_<PyPeer>& type) {
  type.def(
          "send",
          [](PyPeer& self, nb::handle buffer, nb::handle tag, nb::handle timeout,
             nb::handle after) { send(*self.link, {buffer, tag, after}, timeout); },
          nb::arg("buffer").none(), nb::arg("tag").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def send(self, buffer: onehop.buffers.Buffer, tag: typing.SupportsIndex = 0, "
                  "timeout: float | None = "
                  "..." OH_PYTHON_AFTER_ARGUMENT ") -> None"),
          "Sends the bytes of a buffer. Returns when the buffer may be reused.\n\n" OH_PYTHON_BUFFER
          "\n"
          "tag: 0 to 2**63 - 1.\n" OH_PYTHON_TIMEOUT "\n" OH_PYTHON_AFTER
          "\n\n"
          "InvalidArgument. TimeoutError. PeerLost. OperationError with Status.TRUNCATED:\n"
          "the receive is shorter. Ctrl-C cancels the send.")
      .def(
          "recv",
          [](PyPeer& self, nb::handle buffer, nb::handle tag, nb::handle timeout,
             nb::handle after) { return recv(*self.link, {buffer, tag, after}, timeout); },
          nb::arg("buffer").none(), nb::arg("tag").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def recv(self, buffer: onehop.buffers.Buffer, tag: typing.SupportsIndex = 0, "
                  "timeout: float | None = "
                  "..." OH_PYTHON_AFTER_ARGUMENT ") -> Message"),
          "Receives a message into a writable buffer of at least its length.\n\n" OH_PYTHON_BUFFER
          "\n"
          "tag: 0 to 2**63 - 1, or onehop.ANY_TAG.\n" OH_PYTHON_TIMEOUT "\n" OH_PYTHON_AFTER
          "\n\n"
          "InvalidArgument. TimeoutError. PeerLost. OperationError with Status.TRUNCATED:\n"
          "the message is longer. Ctrl-C cancels the receive.")
      .def(
          "isend",
          [](PyPeer& self, nb::handle buffer, nb::handle tag, nb::handle after) {
            return isend(*self.link, {buffer, tag, after});
          },
          nb::arg("buffer").none(), nb::arg("tag").none() = 0,
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def isend(self, buffer: onehop.buffers.Buffer, tag: typing.SupportsIndex = "
                  "0" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
          "Nonblocking send; arguments as for send. OperationError with Status.AGAIN:\n"
          "ONEHOP_MAX_PENDING sends already wait for their receives; make progress and call\n"
          "again.")
      .def(
          "irecv",
          [](PyPeer& self, nb::handle buffer, nb::handle tag, nb::handle after) {
            return irecv(*self.link, {buffer, tag, after});
          },
          nb::arg("buffer").none(), nb::arg("tag").none() = 0,
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def irecv(self, buffer: onehop.buffers.Buffer, tag: typing.SupportsIndex = "
                  "0" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
          "Nonblocking receive; arguments as for recv.");
}

void bind_signals(nb::class_<PyPeer>& type) {
  type.def(
          "notify", notify, nb::arg("data").none(), nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig(
              "def notify(self, data: onehop.buffers.Buffer, timeout: float | None = ...) -> None"),
          "Sends a notification of at most 64 MiB. The peer takes it with\n"
          "Endpoint.notifications. " OH_PYTHON_TIMEOUT)
      .def(
          "signal",
          [](PyPeer& self, nb::handle given_slot, nb::handle given_count) {
            uint32_t slot = small_number(given_slot, kSlot);
            uint64_t count = whole_number(given_count, kCount);
            WithoutGil release;
            self.link->peer->signal(slot, count);
          },
          nb::arg("slot").none(), nb::arg("n").none() = 1,
          nb::sig(
              "def signal(self, slot: typing.SupportsIndex, n: typing.SupportsIndex = 1) -> None"),
          "Adds n to the peer's signal slot (0 to 63) for this side, after the puts before\n"
          "it.")
      .def("wait_signal", wait_signal, nb::arg("slot").none(), nb::arg("n").none() = 1,
           nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def wait_signal(self, slot: typing.SupportsIndex, n: typing.SupportsIndex = 1, "
                   "timeout: float | None = ...) -> None"),
           "Waits until this side's slot for the peer has reached n, then subtracts "
           "n.\n" OH_PYTHON_TIMEOUT);
}

}  // namespace

void bind_peer(nb::module_& module) {
  nb::class_<PyPeer> type(
      module, "Peer", nb::is_weak_referenceable(),
      "A connection to one remote endpoint. Every transfer is a method of a Peer. Any\n"
      "number of threads may use it.");
  bind_messages(type);
  bind_signals(type);
  bind_message_batches(type);
  bind_waits(type);
  bind_one_sided(type);
  bind_batches(module, type);
  bind_region_batches(type);
  bind_lanes(module, type);
  type.def(
          "attach", attach, nb::arg("descriptor").none(),
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig(
              "def attach(self, descriptor: onehop.buffers.Buffer, timeout: float | None = ...) -> "
              "RemoteRegion"),
          "Attaches a region of this peer by its Region.descriptor. " OH_PYTHON_TIMEOUT)
      .def(
          "info", [](PyPeer& self) { return peer_info(*self.link); },
          nb::sig("def info(self) -> onehop.records.PeerInfo"), "Facts about the link.")
      .def(
          "stats", [](PyPeer& self) { return peer_stats(*self.link); },
          nb::sig("def stats(self) -> onehop.records.PeerStats"),
          "Counters of this link since it was created.")
      .def(
          "paths", [](PyPeer& self) { return peer_paths(*self.link); },
          nb::sig("def paths(self) -> list[onehop.records.PathRow]"),
          "The path for each kind of memory and each size, and why: see onehop.paths.")
      .def(
          "flight_record", [](PyPeer& self) { return to_text(self.link->peer->flight_record()); },
          "The last 1,024 operations that ended on this link, one line each.")
      .def("async_error", async_error,
           nb::sig("def async_error(self) -> onehop.errors.Error | None"),
           "Returns and clears the last error of an operation that had succeeded at this\n"
           "side, or None.")
      .def_prop_ro(
          "id", [](PyPeer& self) { return self.link->id; }, "Unique in the process.")
      .def_prop_ro(
          "rank",
          [](PyPeer& self) -> std::optional<int64_t> {
            if (self.link->rank < 0) return std::nullopt;
            return self.link->rank;
          },
          "Its rank in the communicator, or None.")
      .def("close", close, "Closes the link. Operations in flight are cancelled.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Peer"))
      .def(
          "__exit__", [](PyPeer& self, nb::args) { close(self); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](PyPeer& self) {
        std::string rank = self.link->rank < 0 ? "" : " rank " + std::to_string(self.link->rank);
        return to_text("<onehop.Peer " + std::to_string(self.link->id) + rank + " " +
                       self.link->label + ">");
      });
}

}  // namespace onehop::python
