// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>

#include "arguments.h"
#include "bytes.h"
#include "comm.h"
#include "endpoint.h"
#include "errors.h"
#include "held.h"
#include "message_batches.h"

namespace onehop::python {
namespace {

constexpr int64_t kAnySource = -1;

// Converts a rank or onehop.ANY_SOURCE.
int64_t source_of(nb::handle source) {
  constexpr Argument kSource{"src", "a rank, 0 to size - 1, or onehop.ANY_SOURCE"};
  nb::object number = as_int(source);
  if (!number.is_valid()) refuse_type(source, kSource);
  int overflow = 0;
  int64_t rank = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0 || rank < kAnySource) refuse_value(source, kSource);
  return rank;
}

struct CommunicatorArguments {
  int64_t rank;
  int64_t size;
  nb::handle rendezvous;
  nb::handle unique_id;
  nb::handle timeout;
};

std::shared_ptr<Context> create(const CommunicatorArguments& given,
                                std::shared_ptr<EndpointArguments> endpoint) {
  if (given.rank < 0 || given.rank >= given.size || given.size > INT32_MAX) {
    raise_invalid("rank " + std::to_string(given.rank) + " of " + std::to_string(given.size) +
                  ": ranks are 0 to size - 1");
  }
  std::string rendezvous;
  if (!given.rendezvous.is_none()) {
    rendezvous = string(given.rendezvous, {"rendezvous", "\"tcp://HOST:PORT\""});
  }
  Bytes unique_id;
  if (!given.unique_id.is_none()) {
    unique_id = from_bytes(given.unique_id);
    if (unique_id.empty()) raise_invalid("unique_id has 0 bytes: give those of onehop.unique_id");
  }
  auto options = detail::sized<oh_comm_options>();
  options.rank = static_cast<uint32_t>(given.rank);
  options.size = static_cast<uint32_t>(given.size);
  // Let the library apply its default.
  options.timeout_ns = timeout_ns(given.timeout, OH_TIMEOUT_DEFAULT);
  return call_cancellably([options, rendezvous, unique_id, endpoint](const int* cancelled) mutable {
    options.endpoint = endpoint->options;
    if (!rendezvous.empty()) options.rendezvous = rendezvous.c_str();
    if (!unique_id.empty()) options.unique_id = unique_id.data();
    options.unique_id_size = unique_id.size();
    return Context::create(options, cancelled);
  });
}

// Creates it with a store or an MPI communicator: Python exchanges the unique id through it and
// returns the remaining time.
std::shared_ptr<Context> create_by(nb::handle store, nb::handle comm, nb::handle rank,
                                   nb::handle size, nb::handle timeout,
                                   std::shared_ptr<EndpointArguments> endpoint) {
  timeout_ns(timeout, OH_TIMEOUT_DEFAULT);  // raises if it is invalid
  nb::object meet = nb::module_::import_("onehop.meeting").attr("meet");
  auto met = nb::cast<nb::tuple>(meet(rank, size, store, comm, timeout));
  nb::object unique_id = met[2];
  nb::object left = met[3];
  return create({nb::cast<int64_t>(met[0]), nb::cast<int64_t>(met[1]), nb::none(), unique_id, left},
                std::move(endpoint));
}

// Converts an optional rank or size.
std::optional<int64_t> number_of(nb::handle given, Argument argument) {
  if (given.is_none()) return std::nullopt;
  return static_cast<int64_t>(small_number(given, argument));
}

void init(PyCommunicator* self, nb::handle given_rank, nb::handle given_size, nb::handle rendezvous,
          nb::handle unique_id, nb::handle device, nb::handle max_inline,
          nb::handle progress_thread, nb::handle timeout, nb::handle store, nb::handle comm) {
  std::optional<int64_t> rank = number_of(given_rank, kRank);
  std::optional<int64_t> size = number_of(given_size, kSize);
  auto endpoint = std::make_shared<EndpointArguments>(device, max_inline, progress_thread);
  std::shared_ptr<Context> context;
  if (!store.is_none() || !comm.is_none()) {
    if (!rendezvous.is_none() || !unique_id.is_none()) {
      raise_invalid("rendezvous, unique_id, store and comm: give one of them");
    }
    context = create_by(store, comm, nb::cast(rank), nb::cast(size), timeout, std::move(endpoint));
  } else {
    if (!rank || !size) raise_invalid("a communicator needs rank and size, or comm");
    context = create({*rank, *size, rendezvous, unique_id, timeout}, std::move(endpoint));
  }
  new (self) PyCommunicator{std::move(context), {}};
  self->links.resize(self->context->communicator().size());
}

void barrier(PyCommunicator& self, nb::handle timeout) {
  self.context->check();
  Timeout limit{timeout_ns(timeout, self.context->default_timeout_ns())};
  call_interruptibly([context = self.context, limit] {
    context->communicator().barrier(limit);
    return true;
  });
}

void close(PyCommunicator& self) {
  {
    WithoutGil release;
    self.context->close();
  }
  orphans().sweep_all();
  sweep_all_held();
}

PyMessage probe_from(PyCommunicator& self, nb::handle source, nb::handle tag, nb::handle timeout) {
  int64_t rank = source_of(source);
  if (rank == kAnySource) return probe_any(self.context, tag, timeout);
  return probe(*self.link(rank, timeout), tag, timeout);
}

PyMessage recv_from(PyCommunicator& self, nb::handle source, const Transfer& transfer,
                    nb::handle timeout) {
  int64_t rank = source_of(source);
  if (rank == kAnySource) return recv_any(self.context, transfer, timeout);
  return recv(*self.link(rank, timeout), transfer, timeout);
}

PyRequest irecv_from(PyCommunicator& self, nb::handle source, const Transfer& transfer) {
  int64_t rank = source_of(source);
  if (rank == kAnySource) return irecv_any(self.context, transfer);
  return irecv(*self.link(rank, nb::ellipsis()), transfer);
}

void bind_messages(nb::class_<PyCommunicator>& type) {
  type.def(
          "send",
          [](PyCommunicator& self, nb::handle buffer, nb::handle dst, nb::handle tag,
             nb::handle timeout, nb::handle after) {
            send(*self.link(rank_of(dst, "dst"), timeout), {buffer, tag, after}, timeout);
          },
          nb::arg("buffer").none(), nb::arg("dst").none(), nb::arg("tag").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def send(self, buffer: onehop.buffers.Buffer, dst: typing.SupportsIndex, tag: "
                  "typing.SupportsIndex = 0, timeout: "
                  "float | None = ..." OH_PYTHON_AFTER_ARGUMENT ") -> None"),
          "Sends to rank dst: see Peer.send. The first use connects.")
      .def(
          "recv",
          [](PyCommunicator& self, nb::handle buffer, nb::handle src, nb::handle tag,
             nb::handle timeout,
             nb::handle after) { return recv_from(self, src, {buffer, tag, after}, timeout); },
          nb::arg("buffer").none(), nb::arg("src").none(), nb::arg("tag").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def recv(self, buffer: onehop.buffers.Buffer, src: typing.SupportsIndex, tag: "
                  "typing.SupportsIndex = 0, timeout: "
                  "float | None = ..." OH_PYTHON_AFTER_ARGUMENT ") -> Message"),
          "Receives from rank src, or onehop.ANY_SOURCE: see Peer.recv.")
      .def("probe", probe_from, nb::arg("src").none(), nb::arg("tag").none() = 0,
           nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def probe(self, src: typing.SupportsIndex, tag: typing.SupportsIndex = 0, "
                   "timeout: float | None = ...) -> Message"),
           "The next message without a posted receive from rank src, or onehop.ANY_SOURCE:\n"
           "see Peer.probe.")
      .def(
          "isend",
          [](PyCommunicator& self, nb::handle buffer, nb::handle dst, nb::handle tag,
             nb::handle after) {
            return isend(*self.link(rank_of(dst, "dst"), nb::ellipsis()), {buffer, tag, after});
          },
          nb::arg("buffer").none(), nb::arg("dst").none(), nb::arg("tag").none() = 0,
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def isend(self, buffer: onehop.buffers.Buffer, dst: typing.SupportsIndex, tag: "
                  "typing.SupportsIndex = 0" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
          "Nonblocking send to rank dst: see Peer.isend. The first use connects, which\n"
          "blocks.")
      .def(
          "irecv",
          [](PyCommunicator& self, nb::handle buffer, nb::handle src, nb::handle tag,
             nb::handle after) { return irecv_from(self, src, {buffer, tag, after}); },
          nb::arg("buffer").none(), nb::arg("src").none(), nb::arg("tag").none() = 0,
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def irecv(self, buffer: onehop.buffers.Buffer, src: typing.SupportsIndex, tag: "
                  "typing.SupportsIndex = 0" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
          "Nonblocking receive from rank src, or onehop.ANY_SOURCE. The first use of a rank\n"
          "connects, which blocks.");
}

void bind_batches(nb::class_<PyCommunicator>& type) {
  type.def(
          "send_batch",
          [](PyCommunicator& self, nb::handle local, nb::handle offsets, nb::handle lengths,
             nb::handle dst, nb::handle tag, nb::handle timeout, nb::handle after) {
            send_batch(*self.link(rank_of(dst, "dst"), timeout),
                       {local, offsets, lengths, tag, after}, timeout);
          },
          nb::arg("local").none(), nb::arg("offsets").none(), nb::arg("lengths").none(),
          nb::arg("dst").none(), nb::arg("tag").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def send_batch(" OH_PYTHON_BLOCKS
                  ", dst: typing.SupportsIndex, tag: typing.SupportsIndex = 0, timeout: float | "
                  "None = ..." OH_PYTHON_AFTER_ARGUMENT ") -> None"),
          "Sends many blocks to rank dst as one message: see Peer.send_batch.")
      .def(
          "recv_batch",
          [](PyCommunicator& self, nb::handle local, nb::handle offsets, nb::handle lengths,
             nb::handle src, nb::handle tag, nb::handle timeout, nb::handle after) {
            return recv_batch(*self.link(rank_of(src, "src"), timeout),
                              {local, offsets, lengths, tag, after}, timeout);
          },
          nb::arg("local").none(), nb::arg("offsets").none(), nb::arg("lengths").none(),
          nb::arg("src").none(), nb::arg("tag").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def recv_batch(" OH_PYTHON_BLOCKS
                  ", src: typing.SupportsIndex, tag: typing.SupportsIndex = 0, timeout: float | "
                  "None = ..." OH_PYTHON_AFTER_ARGUMENT ") -> Message"),
          "Receives many blocks from rank src: see Peer.recv_batch.")
      .def(
          "irecv_batch",
          [](PyCommunicator& self, nb::handle local, nb::handle offsets, nb::handle lengths,
             nb::handle src, nb::handle tag, nb::handle after) {
            return irecv_batch(*self.link(rank_of(src, "src"), nb::ellipsis()),
                               {local, offsets, lengths, tag, after});
          },
          nb::arg("local").none(), nb::arg("offsets").none(), nb::arg("lengths").none(),
          nb::arg("src").none(), nb::arg("tag").none() = 0,
          nb::arg("after").none() = current_stream_object(),
          nb::sig(
              "def irecv_batch(" OH_PYTHON_BLOCKS
              ", src: typing.SupportsIndex, tag: typing.SupportsIndex = 0" OH_PYTHON_AFTER_ARGUMENT
              ") -> Request"),
          "Nonblocking receive of many blocks from rank src: see Peer.irecv_batch. The\n"
          "first use of a rank connects, which blocks.");
}

}  // namespace

std::shared_ptr<Link> PyCommunicator::link(int64_t rank, nb::handle timeout) {
  if (rank >= 0 && static_cast<size_t>(rank) < links.size()) {
    if (const std::shared_ptr<Link>& known = links[static_cast<size_t>(rank)]) return known;
  }
  context->check();
  Timeout limit{timeout_ns(timeout, context->default_timeout_ns())};
  Peer peer = call_interruptibly(
      [owner = context, rank, limit] { return owner->communicator().peer(rank, limit); });
  std::shared_ptr<Link>& slot = links[static_cast<size_t>(rank)];
  // Another thread may have stored its link first; use that one.
  if (!slot) slot = Link::of(context, std::move(peer));
  return slot;
}

int64_t rank_of(nb::handle rank, const char* name) {
  return small_number(rank, {name, kRank.accepted});
}

std::string own_rank(const PyCommunicator& self) {
  return std::to_string(oh_comm_rank(self.context->communicator().get()));
}

namespace {

// Waits for a working link to the rank; returns the existing peer if its link still works.
PyPeer reconnect(PyCommunicator& self, nb::handle rank, nb::handle timeout) {
  int64_t number = rank_of(rank, "rank");
  self.context->check();
  Timeout limit{timeout_ns(timeout, self.context->default_timeout_ns())};
  Peer peer = call_cancellably([owner = self.context, number, limit](const int* cancelled) {
    return owner->communicator().reconnect(number, limit, cancelled);
  });
  std::shared_ptr<Link>& slot = self.links[static_cast<size_t>(number)];
  std::shared_ptr<Link> made = Link::of(self.context, std::move(peer));
  if (!slot || slot->id != made->id) slot = std::move(made);
  return PyPeer{slot};
}

}  // namespace

void bind_communicator(nb::module_& module) {
  nb::class_<PyCommunicator> type(
      module, "Communicator", nb::is_weak_referenceable(),
      "Ranks 0 to size - 1 that meet at one rendezvous. Peers connect on first use. Any\n"
      "thread may use it. A context manager that closes it.");
  type.def(
      "__init__", init, nb::arg("rank") = nb::none(), nb::arg("size") = nb::none(),
      nb::arg("rendezvous") = nb::none(), nb::arg("unique_id") = nb::none(),
      nb::arg("device") = nb::none(), nb::arg("max_inline") = nb::none(),
      nb::arg("progress_thread").none() = false, nb::arg("timeout").none() = nb::ellipsis(),
      nb::arg("store") = nb::none(), nb::arg("comm") = nb::none(),
      nb::sig(
          "def __init__(self, rank: typing.SupportsIndex | None = None, size: typing.SupportsIndex "
          "| None = None, rendezvous: str | "
          "None = None, unique_id: onehop.buffers.Buffer | None = None, device: "
          "onehop.devices.Device = None, max_inline: typing.SupportsIndex | None = None, "
          "progress_thread: bool = "
          "False, timeout: float | None = ..., store: onehop.meeting.Store | None = None, comm: "
          "onehop.meeting.MpiComm | None = None) -> None"),
      "Blocks until all ranks have joined.\n\n"
      "rendezvous: \"tcp://HOST:PORT\", served by rank 0. Unless HOST is loopback, all\n"
      "ranks need the same ONEHOP_SECRET.\n"
      "unique_id: instead, the bytes of onehop.unique_id.\n"
      "store: instead, a torch.distributed.Store or an object like it, through which\n"
      "rank 0 passes an id. If several groups of ranks use one store, give each a\n"
      "PrefixStore.\n"
      "comm: instead, an mpi4py communicator, which also gives rank and size. All of\n"
      "its ranks must call.\n"
      "device, max_inline, progress_thread: as for Endpoint.\n" OH_PYTHON_TIMEOUT
      "\n\n"
      "TimeoutError names the missing ranks. LinkError with Status.REFUSED: the rank is\n"
      "taken; with Status.AUTH: the secret is missing or wrong; with\n"
      "Status.UNREACHABLE: the store fails.");
  bind_messages(type);
  bind_batches(type);
  bind_streams(module, type);
  type.def_prop_ro(
          "rank",
          [](PyCommunicator& self) { return oh_comm_rank(self.context->communicator().get()); },
          "The own rank.")
      .def_prop_ro(
          "size", [](PyCommunicator& self) { return self.links.size(); }, "The number of ranks.")
      .def(
          "peer",
          [](PyCommunicator& self, nb::handle rank, nb::handle timeout) {
            int64_t number = rank_of(rank, "rank");
            // raises if it is invalid, even if already connected
            timeout_ns(timeout, OH_TIMEOUT_DEFAULT);
            return PyPeer{self.link(number, timeout)};
          },
          nb::arg("rank").none(), nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig(
              "def peer(self, rank: typing.SupportsIndex, timeout: float | None = ...) -> Peer"),
          "The Peer of a rank. Connects if there is no link yet. The own rank has a Peer\n"
          "too. " OH_PYTHON_TIMEOUT)
      .def(
          "reconnect", reconnect, nb::arg("rank").none(),
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig("def reconnect(self, rank: typing.SupportsIndex, timeout: float | None = ...) -> "
                  "Peer"),
          "Waits for a new link to a rank whose link was lost or closed (LinkError), and\n"
          "returns its new Peer. The other side must call it too. Returns at once if the\n"
          "link works. " OH_PYTHON_TIMEOUT
          "\n\n"
          "If the rank's process has ended, start another one that creates its Communicator\n"
          "with the same rank, size and rendezvous (or unique_id). It joins while rank 0 is\n"
          "in reconnect() for it. If rank 0 itself has ended, create another communicator\n"
          "on all ranks. Operations in flight are lost. Barriers continue if all other\n"
          "ranks have entered as many as rank 0.")
      .def_prop_ro(
          "endpoint", [](PyCommunicator& self) { return PyEndpoint{self.context}; },
          "The communicator's endpoint, for regions and notifications. Closing it closes\n"
          "the communicator.")
      .def("barrier", barrier, nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def barrier(self, timeout: float | None = ...) -> None"),
           "Returns once all ranks have called it. " OH_PYTHON_TIMEOUT
           "\n\n"
           "PeerLost, at every rank: a rank is lost. After TimeoutError the ranks may be at\n"
           "different barriers: create another communicator.")
      .def("close", close,
           "Closes all links. Operations in flight are cancelled; blocked calls raise.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Communicator"))
      .def(
          "__exit__", [](PyCommunicator& self, nb::args) { close(self); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](PyCommunicator& self) {
        auto known = std::count_if(self.links.begin(), self.links.end(),
                                   [](const auto& link) { return link != nullptr; });
        return "<onehop.Communicator rank " + own_rank(self) + " of " +
               std::to_string(self.links.size()) + ", connected to " + std::to_string(known) +
               (self.context->is_closed() ? ", closed>" : ">");
      });
}

}  // namespace onehop::python
