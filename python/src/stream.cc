// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered operations, and groups of them.
#include "stream.h"

#include <nanobind/stl/string.h>

#include <cstdio>
#include <string>

#include "arguments.h"
#include "errors.h"
#include "one_sided.h"

namespace onehop::python {
namespace {

constexpr size_t kSizeBytes = 8;

struct PyGroup {};

// Acquires the device word of a message's size; returns null for None.
void* acquire_size(Held& held, nb::handle object, Access access, const char* name) {
  if (object.is_none()) return nullptr;
  held.size.acquire(*held.link->context, object, access);
  check_on_device("the " + name_of_type(object), held.size);
  if (held.size.size() != kSizeBytes) {
    raise_invalid(std::string(name) + " has " + std::to_string(held.size.size()) +
                  " bytes: it is one integer of 64 bits, in the memory of the GPU");
  }
  return held.size.data();
}

oh_stream_options options_of(uint32_t lane, nb::handle timeout) {
  auto options = detail::sized<oh_stream_options>();
  options.lane = lane;
  options.timeout_ns = timeout_ns(timeout, OH_TIMEOUT_DEFAULT);
  return options;
}

// Enqueues a copy between local memory and a remote region of the same size, with `call`.
template <typename Call>
void move(PyOnStream& self, nb::handle object, nb::handle region, Access access, Call call) {
  PyRemoteRegion& remote = remote_of(region);
  Link& link = *self.link;
  auto held = begin_on(link, self.stream, object, access);
  const Local& local = held->local;
  check_sizes(local, remote);
  held->remotes.push_back(remote.hold());
  oh_remote_region* target = (*held->remotes.back())->get();
  enqueue(std::move(held), [&, stream = self.stream.handle] {
    return call(link.get(), stream, local.data(), target, remote.offset, local.size());
  });
}

void put(PyOnStream& self, nb::handle object, nb::handle region) {
  move(self, object, region, Access::kRead, oh_peer_stream_put);
}
void get(PyOnStream& self, nb::handle object, nb::handle region) {
  move(self, object, region, Access::kWrite, oh_peer_stream_get);
}

// `before`: device memory for the previous value; None: not stored.
template <typename Call>
void run_atomic(PyOnStream& self, nb::handle region, nb::handle before, Call call) {
  PyRemoteRegion& remote = word_of(region);
  Link& link = *self.link;
  sweep_held();
  auto held = std::make_unique<Held>();
  held->link = self.link;
  held->stream = self.stream;
  auto* place = static_cast<uint64_t*>(acquire_size(*held, before, Access::kWrite, "before"));
  held->remotes.push_back(remote.hold());
  oh_remote_region* target = (*held->remotes.back())->get();
  enqueue(std::move(held), [&, stream = self.stream.handle] {
    return call(link.get(), stream, target, remote.offset, place);
  });
}

void fetch_add(PyOnStream& self, nb::handle region, nb::handle given, nb::handle before) {
  const uint64_t value = word(given, "value");
  run_atomic(self, region, before,
             [value](oh_peer* peer, void* stream, oh_remote_region* remote, size_t offset,
                     uint64_t* place) {
               return oh_peer_stream_fetch_add(peer, stream, remote, offset, value, place);
             });
}

void compare_swap(PyOnStream& self, nb::handle region, nb::handle given_expected,
                  nb::handle given_value, nb::handle before) {
  const uint64_t expected = word(given_expected, "expected");
  const uint64_t value = word(given_value, "value");
  run_atomic(
      self, region, before,
      [=](oh_peer* peer, void* stream, oh_remote_region* remote, size_t offset, uint64_t* place) {
        return oh_peer_stream_compare_swap(peer, stream, remote, offset, expected, value, place);
      });
}

void signal(PyOnStream& self, nb::handle given_slot, nb::handle given_count) {
  uint32_t slot = small_number(given_slot, kSlot);
  uint64_t count = whole_number(given_count, kCount);
  sweep_held();
  WithoutGil release;
  check(oh_peer_stream_signal(self.link->get(), self.stream.handle, slot, count));
}

void wait_signal(PyOnStream& self, nb::handle given_slot, nb::handle given_count,
                 nb::handle timeout) {
  uint32_t slot = small_number(given_slot, kSlot);
  uint64_t count = whole_number(given_count, kCount);
  sweep_held();
  oh_stream_options options = options_of(0, timeout);
  WithoutGil release;
  check(oh_peer_stream_wait_signal(self.link->get(), self.stream.handle, slot, count, &options));
}

// Always ends the group; an exception of its body takes precedence over an error of its end.
void leave_group(nb::handle type) {
  try {
    end_group();
  } catch (const Error&) {
    if (type.is_none()) throw;
  }
}

void bind_group(nb::module_& module) {
  nb::class_<PyGroup>(module, "Group", "The context manager that onehop.group returns.")
      .def(
          "__enter__", [](PyGroup&) { begin_group(); }, nb::sig("def __enter__(self) -> None"))
      .def(
          "__exit__",
          [](PyGroup&, nb::args given) { leave_group(given.size() > 0 ? given[0] : nb::none()); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const PyGroup&) {
        int depth = group_depth();
        return "<onehop.Group, " + std::to_string(depth) + " open in this thread>";
      });
  module.def(
      "group", [] { return PyGroup{}; },
      "Collects the stream operations of this thread in `with onehop.group():`, and\n"
      "starts them together at its end, with one launch per stream. Sends and receives\n"
      "of a group do not wait for each other, except those of one lane and direction,\n"
      "which run in order. Groups may be nested; only the outermost end starts the\n"
      "operations. At most 128 operations a stream. Errors of operations may be raised\n"
      "at the end. If the body raises, the operations that were collected still start.");
}

void bind_on_stream(nb::module_& module) {
  nb::class_<PyOnStream> type(
      module, "OnStream",
      "A peer's operations in the order of a CUDA stream. Each call enqueues and\n"
      "returns. Calls may be captured into a graph and replayed any number of times.\n"
      "Create it with Peer.on.\n\n"
      "Send k of a lane matches receive k of the peer's lane, never one of Peer.send.\n"
      "Peer.async_error reports errors that occur after a call has returned. Buffers\n"
      "are GPU memory, of any size and alignment; puts and gets take host memory, too.\n"
      "They are kept alive until the stream has finished with them (later calls check;\n"
      "torch tensors of messages by record_stream).\n"
      "Buffers of captured operations are not kept: keep them as long as the graph.");
  type.def(
          "send",
          [](PyOnStream& self, nb::handle buffer, nb::handle lane, nb::handle timeout,
             nb::handle size_from) {
            stream_send(*self.link, self.stream,
                        {buffer, small_number(lane, kLane), timeout, size_from});
          },
          nb::arg("buffer").none(), nb::arg("lane").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(), nb::arg("size_from") = nb::none(),
          nb::sig("def send(self, buffer: onehop.buffers.Buffer" OH_PYTHON_STREAM_ARGUMENTS(
              "size_from") ") -> None"),
          "Sends the bytes of a buffer. Later work of the stream may write the buffer\n"
          "again.\n\n"
          "lane: 0 to 15. timeout: seconds that the GPU waits for the receive, then the\n"
          "lane fails; None: no limit; omitted: ONEHOP_TIMEOUT. size_from: 8 bytes of GPU\n"
          "memory with the number of bytes to send, read when the send runs.\n\n"
          "A message of at most StreamInfo.stream_buffered bytes does not wait for its\n"
          "receive. The first call connects the lanes, which blocks: see Peer.warmup.\n"
          "InvalidArgument: host memory, no such lane, or a capture without warmup.\n"
          "OperationError with Status.NOT_VIABLE: neither kernels nor the host can reach\n"
          "the peer.")
      .def(
          "recv",
          [](PyOnStream& self, nb::handle buffer, nb::handle lane, nb::handle timeout,
             nb::handle size_to) {
            stream_recv(*self.link, self.stream,
                        {buffer, small_number(lane, kLane), timeout, size_to});
          },
          nb::arg("buffer").none(), nb::arg("lane").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(), nb::arg("size_to") = nb::none(),
          nb::sig("def recv(self, buffer: onehop.buffers.Buffer" OH_PYTHON_STREAM_ARGUMENTS(
              "size_to") ") -> None"),
          "Receives a message into a writable buffer of at least its length. Later work of\n"
          "the stream sees its bytes.\n\n"
          "size_to: 8 bytes of GPU memory that get the message's length in bytes. Other\n"
          "arguments and errors as for send. A longer message fails with Status.TRUNCATED,\n"
          "and the lane continues.")
      .def("put", put, nb::arg("local").none(), nb::arg("remote").none(),
           nb::sig("def put(self, local: onehop.buffers.Buffer, remote: RemoteRegion) -> None"),
           "Writes the local bytes into the remote region of the same length, by the copy\n"
           "engine. A signal that follows arrives after them. If the region is not mapped\n"
           "here and the peer's streams use the proxy, the host puts them, from GPU memory\n"
           "only. With host memory that is neither from onehop.empty nor pinned, the call\n"
           "may block until the stream reaches the copy.\n\n"
           "OutOfRange: the lengths differ. InvalidArgument: host memory by the proxy.\n"
           "OperationError with Status.NOT_VIABLE: neither way is possible.")
      .def("get", get, nb::arg("local").none(), nb::arg("remote").none(),
           nb::sig("def get(self, local: onehop.buffers.Buffer, remote: RemoteRegion) -> None"),
           "Reads the remote region into local memory of the same length, by the same ways\n"
           "as put. Later work of the stream sees the bytes: those that the peer wrote\n"
           "before a signal that the stream has waited for, or later ones. Errors as for\n"
           "put.")
      .def("fetch_add", fetch_add, nb::arg("remote").none(), nb::arg("value").none(),
           nb::arg("before") = nb::none(),
           nb::sig("def fetch_add(self, remote: RemoteRegion, value: typing.SupportsIndex, before: "
                   "onehop.buffers.Buffer | None = None) -> None"),
           "Adds to an unsigned number of 8 bytes in the peer's memory, modulo 2**64, after\n"
           "all earlier work of the stream.\n\n"
           "remote: a slice of 8 bytes whose address is a multiple of 8.\n"
           "before: 8 bytes of GPU memory that get the previous value.\n\n"
           "On GPU memory a kernel carries it out, at system scope: atomic with those of all\n"
           "kernels and streams. On host memory the host does, if the peer's streams use the\n"
           "proxy; an error that occurs later leaves 0 in before.\n\n"
           "OutOfRange: not 8 bytes. OperationError with Status.READ_ONLY, RETIRED, or\n"
           "NOT_VIABLE: not mapped here, or no native atomics over the link.")
      .def("compare_swap", compare_swap, nb::arg("remote").none(), nb::arg("expected").none(),
           nb::arg("value").none(), nb::arg("before") = nb::none(),
           nb::sig("def compare_swap(self, remote: RemoteRegion, expected: typing.SupportsIndex, "
                   "value: typing.SupportsIndex, before: onehop.buffers.Buffer | None = None) -> "
                   "None"),
           "Writes value if it finds expected. Arguments and errors as for fetch_add.")
      .def("signal", signal, nb::arg("slot").none(), nb::arg("n").none() = 1,
           nb::sig(
               "def signal(self, slot: typing.SupportsIndex, n: typing.SupportsIndex = 1) -> None"),
           "Adds n to the peer's stream signal slot (0 to 63) for this side, after all\n"
           "earlier work of the stream. The counts are separate from those of Peer.signal.")
      .def("wait_signal", wait_signal, nb::arg("slot").none(), nb::arg("n").none() = 1,
           nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def wait_signal(self, slot: typing.SupportsIndex, n: typing.SupportsIndex = 1, "
                   "timeout: float | None = ...) -> None"),
           "The stream waits until this side's slot has reached n, then subtracts n.\n"
           "timeout: as for send; Peer.async_error reports it.")
      .def("__repr__", [](const PyOnStream& self) {
        return "<onehop.OnStream peer " + std::to_string(self.link->id) + ", " +
               name_of(self.stream) + ">";
      });
  bind_stream_batches(type);
  bind_stream_region_batches(type);
}

}  // namespace

void check_on_device(const std::string& what, const Local& local) {
  if (local.size() == 0 || local.memory() != Memory::kHost) return;
  raise_invalid(what +
                " is host memory, but a stream needs GPU memory here: copy it to the GPU, or use "
                "Peer.send and its kin");
}

std::unique_ptr<Held> begin_on(Link& link, const GivenStream& stream, nb::handle object,
                               Access access) {
  sweep_held();
  auto held = std::make_unique<Held>();
  held->link = link.shared_from_this();
  held->stream = stream;
  held->local.acquire(*link.context, object, access);
  return held;
}

GivenStream given_stream(nb::handle stream) { return {stream_of(stream), nb::borrow(stream)}; }

std::string name_of(const GivenStream& stream) {
  char text[32];
  std::snprintf(text, sizeof(text), "stream %#zx", reinterpret_cast<size_t>(stream.handle));
  return text;
}

void stream_send(Link& link, const GivenStream& stream, const StreamTransfer& transfer) {
  auto held = begin_on(link, stream, transfer.buffer, Access::kRead);
  const Local& local = held->local;
  check_on_device("the " + name_of_type(transfer.buffer), local);
  oh_stream_options options = options_of(transfer.lane, transfer.timeout);
  options.size_from =
      static_cast<uint64_t*>(acquire_size(*held, transfer.size, Access::kRead, "size_from"));
  enqueue(std::move(held), [&] {
    return oh_peer_stream_send(link.get(), stream.handle, local.data(), local.size(), &options);
  });
}

void stream_recv(Link& link, const GivenStream& stream, const StreamTransfer& transfer) {
  auto held = begin_on(link, stream, transfer.buffer, Access::kWrite);
  const Local& local = held->local;
  check_on_device("the " + name_of_type(transfer.buffer), local);
  oh_stream_options options = options_of(transfer.lane, transfer.timeout);
  options.size_to =
      static_cast<uint64_t*>(acquire_size(*held, transfer.size, Access::kWrite, "size_to"));
  enqueue(std::move(held), [&] {
    return oh_peer_stream_recv(link.get(), stream.handle, local.data(), local.size(), &options);
  });
}

void bind_stream(nb::module_& module) {
  bind_group(module);
  bind_on_stream(module);
}

}  // namespace onehop::python
