// SPDX-License-Identifier: Apache-2.0
//
// Peer.put and get.
#include "one_sided.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "errors.h"

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

void bind_one_sided(nb::class_<PyPeer>& type) {
  type.def("put", put, nb::arg("local").none(), nb::arg("remote").none(),
           nb::arg("notify") = nb::none(), nb::arg("after").none() = current_stream_object(),
           nb::sig("def put(self, local: onehop.buffers.Buffer, remote: RemoteRegion, notify: "
                   "onehop.buffers.Buffer | None = None" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
           "Writes the local bytes into the remote region, of the same length. It has ended when "
           "they "
           "are visible there;\nnotify, at most 64 MiB, comes after them. The local side need "
           "not "
           "be registered.\n\n" OH_PYTHON_AFTER
           "\nOutOfRange; OperationError with Status.RETIRED: the peer has "
           "deregistered "
           "the region.")
      .def("get", get, nb::arg("local").none(), nb::arg("remote").none(),
           nb::arg("after").none() = current_stream_object(), nb::arg("notify") = nb::none(),
           nb::sig("def get(self, local: onehop.buffers.Buffer, remote: "
                   "RemoteRegion" OH_PYTHON_AFTER_ARGUMENT
                   ", notify: onehop.buffers.Buffer | None = None) -> Request"),
           "Reads the remote region into the local bytes, of the same length. notify tells the "
           "peer that they were read.\nafter and errors as for put.");
}

}  // namespace onehop::python
