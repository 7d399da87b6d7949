// SPDX-License-Identifier: Apache-2.0
//
// Peer.put and get.
#include "one_sided.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "arguments.h"
#include "errors.h"
#include "interrupt.h"

namespace onehop::python {
namespace {

PyRequest put(PyPeer& self, nb::handle object, nb::handle target_region, nb::handle notify,
              nb::handle after) {
  PyRemoteRegion& remote = remote_of(target_region);
  Link& link = *self.link;
  auto operation = begin(link, object, Access::kRead);
  const Local& local = operation->local;
  check_sizes(local, remote);
  PutOptions options(notify, local.after(after));
  auto target = remote.hold();
  oh_request* request = nullptr;
  oh_status status;
  {
    WithoutGil release;
    status = oh_peer_put(link.get(), local.data(), (*target)->get(), remote.offset, local.size(),
                         &options.value, &request);
  }
  return started(std::move(operation), status, request);
}

PyRequest get(PyPeer& self, nb::handle object, nb::handle target_region, nb::handle after,
              nb::handle notify) {
  PyRemoteRegion& remote = remote_of(target_region);
  Link& link = *self.link;
  auto operation = begin(link, object, Access::kWrite);
  const Local& local = operation->local;
  check_sizes(local, remote);
  PutOptions options(notify, local.after(after));
  auto target = remote.hold();
  oh_request* request = nullptr;
  oh_status status;
  {
    WithoutGil release;
    status = oh_peer_get(link.get(), local.data(), (*target)->get(), remote.offset, local.size(),
                         &options.value, &request);
  }
  return started(std::move(operation), status, request);
}

// Runs in its own thread, because without a mapping it waits for the peer's answer.
template <typename Call>
uint64_t run_atomic(PyPeer& self, nb::handle target_region, nb::handle timeout, Call call) {
  PyRemoteRegion& remote = word_of(target_region);
  Link& link = *self.link;
  link.context->check();
  const int64_t limit = timeout_ns(timeout, link.context->default_timeout_ns());
  auto target = remote.hold();
  auto run = [call, peer = self.link, target, offset = remote.offset, limit] {
    uint64_t before = 0;
    check(call(peer->get(), (*target)->get(), offset, limit, &before));
    return before;
  };
  if (!(*target)->is_mapped()) return call_interruptibly(run);
  WithoutGil release;
  return run();
}

uint64_t fetch_add(PyPeer& self, nb::handle remote, nb::handle given, nb::handle timeout) {
  const uint64_t value = word(given, "value");
  return run_atomic(self, remote, timeout,
                    [value](oh_peer* peer, oh_remote_region* region, size_t offset, int64_t within,
                            uint64_t* before) {
                      return oh_peer_fetch_add(peer, region, offset, value, within, before);
                    });
}

uint64_t compare_swap(PyPeer& self, nb::handle remote, nb::handle given_expected,
                      nb::handle given_value, nb::handle timeout) {
  const uint64_t expected = word(given_expected, "expected");
  const uint64_t value = word(given_value, "value");
  return run_atomic(self, remote, timeout,
                    [=](oh_peer* peer, oh_remote_region* region, size_t offset, int64_t within,
                        uint64_t* before) {
                      return oh_peer_compare_swap(peer, region, offset, expected, value, within,
                                                  before);
                    });
}

}  // namespace

After after_all(const Locals& locals, nb::handle given) {
  for (const Local& local : locals) {
    if (local.memory() != Memory::kDevice || local.size() == 0) continue;
    After after = local.after(given);
    after.on_device = after.on_device && locals.size() == 1;
    return after;
  }
  return locals.empty() ? After() : locals.front().after(given);
}

void check_sizes(const Local& local, const PyRemoteRegion& remote) {
  if (local.size() == remote.size) return;
  raise_range("the local side has " + std::to_string(local.size()) + " bytes, the remote region " +
              std::to_string(remote.size) + ": slice them to the same length");
}

uint64_t word(nb::handle given, const char* name) {
  return whole_number(given, {name, "a word of 8 bytes, 0 to 2**64 - 1"});
}

PyRemoteRegion& word_of(nb::handle region) {
  PyRemoteRegion& remote = remote_of(region);
  if (remote.size == sizeof(uint64_t)) return remote;
  raise_range("the remote region has " + std::to_string(remote.size) +
              " bytes: slice it to 8, as in remote[16:24]");
}

void bind_one_sided(nb::class_<PyPeer>& type) {
  type.def("put", put, nb::arg("local").none(), nb::arg("remote").none(),
           nb::arg("notify") = nb::none(), nb::arg("after").none() = current_stream_object(),
           nb::sig("def put(self, local: onehop.buffers.Buffer, remote: RemoteRegion, notify: "
                   "onehop.buffers.Buffer | None = None" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
           "Writes the local bytes into the remote region of the same length. The request\n"
           "has ended when they are visible there. notify, at most 64 MiB, is a notification\n"
           "that follows them. The local memory need not be registered.\n\n" OH_PYTHON_AFTER
           "\n"
           "OutOfRange: the lengths differ. OperationError with Status.RETIRED: the peer has\n"
           "deregistered the region.")
      .def("get", get, nb::arg("local").none(), nb::arg("remote").none(),
           nb::arg("after").none() = current_stream_object(), nb::arg("notify") = nb::none(),
           nb::sig("def get(self, local: onehop.buffers.Buffer, remote: "
                   "RemoteRegion" OH_PYTHON_AFTER_ARGUMENT
                   ", notify: onehop.buffers.Buffer | None = None) -> Request"),
           "Reads the remote region into the local bytes of the same length. notify is a\n"
           "notification that tells the peer that they were read. after and errors as for\n"
           "put.")
      .def(
          "fetch_add", fetch_add, nb::arg("remote").none(), nb::arg("value").none(),
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::sig("def fetch_add(self, remote: RemoteRegion, value: typing.SupportsIndex, timeout: "
                  "float | None = ...) -> int"),
          "Adds to an unsigned number of 8 bytes in the peer's memory, modulo 2**64; returns what "
          "was "
          "there. remote is a slice of\n8 bytes whose address is a multiple of 8. On host memory "
          "it is "
          "atomic towards fetch_add and compare_swap of all peers, and\ntowards atomic operations "
          "of "
          "the owner's threads; where it is not mapped here, a thread of the owner carries it "
          "out.\nOn "
          "GPU memory a kernel of onehop does: see OnStream.fetch_add.\n\n" OH_PYTHON_TIMEOUT
          " It may be carried out yet, also behind PeerLost or Ctrl-C.\nOutOfRange: not 8 bytes. "
          "OperationError: Status.RETIRED, READ_ONLY, or NOT_VIABLE: GPU memory that no kernel "
          "of\nonehop reaches over native atomics.")
      .def("compare_swap", compare_swap, nb::arg("remote").none(), nb::arg("expected").none(),
           nb::arg("value").none(), nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def compare_swap(self, remote: RemoteRegion, expected: typing.SupportsIndex, "
                   "value: typing.SupportsIndex, timeout: float | None = ...) -> int"),
           "Writes value where expected is found; returns what was there. See fetch_add.");
}

}  // namespace onehop::python
