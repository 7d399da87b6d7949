// SPDX-License-Identifier: Apache-2.0
//
// The stream API of communicators.
#include <nanobind/stl/string.h>

#include <numeric>
#include <vector>

#include "arguments.h"
#include "endpoint.h"
#include "errors.h"
#include "stream.h"

namespace onehop::python {
namespace {

// Converts a sequence of ranks; None: all ranks except this one.
std::vector<int32_t> ranks_of(const PyCommunicator& self, nb::handle given) {
  std::vector<int32_t> ranks;
  if (given.is_none()) {
    ranks.resize(self.links.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    ranks.erase(ranks.begin() + oh_comm_rank(self.context->communicator().get()));
    return ranks;
  }
  if (!PySequence_Check(given.ptr())) {
    throw TypeMismatch("ranks is of type " + name_of_type(given) + ": give a sequence of ranks");
  }
  for (nb::handle item : given) {
    int64_t rank = rank_of(item, "ranks");
    if (rank >= static_cast<int64_t>(self.links.size())) {
      raise_invalid("rank " + std::to_string(rank) + ": this communicator has ranks 0 to " +
                    std::to_string(self.links.size() - 1));
    }
    ranks.push_back(static_cast<int32_t>(rank));
  }
  return ranks;
}

struct PyCommunicatorHandle {
  std::shared_ptr<Context> context;  // keeps the communicator, whose addresses the handle holds
  oh_comm_handle value;
};

PyCommunicatorHandle device_handle(PyCommunicator& self, nb::handle given_lane) {
  const uint32_t lane = small_number(given_lane, kLane);
  self.context->check();
  WithoutGil release;
  return {self.context, self.context->communicator().device_handle(lane)};
}

void bind_handle(nb::module_& module) {
  nb::class_<PyCommunicatorHandle>(
      module, "CommunicatorHandle",
      "The oh_comm_handle by which kernels use a lane of all ranks (onehop/device.cuh).\n"
      "bytes(handle) is the struct of 8,208 bytes: pass it to a kernel by value or in\n"
      "device memory. Valid until the communicator is closed. Create it with\n"
      "Communicator.device_handle.")
      .def("__bytes__",
           [](const PyCommunicatorHandle& self) {
             return nb::bytes(&self.value, sizeof(self.value));
           })
      .def_prop_ro(
          "rank", [](const PyCommunicatorHandle& self) { return self.value.rank; },
          "The own rank; its entry is zero.")
      .def_prop_ro(
          "size", [](const PyCommunicatorHandle& self) { return self.value.size; },
          "The number of ranks.")
      .def("__repr__", [](const PyCommunicatorHandle& self) {
        return "<onehop.CommunicatorHandle rank " + std::to_string(self.value.rank) + " of " +
               std::to_string(self.value.size) + ">";
      });
}

void warmup(PyCommunicator& self, nb::handle given, nb::handle timeout) {
  self.context->check();
  Timeout limit{timeout_ns(timeout, self.context->default_timeout_ns())};
  call_interruptibly([context = self.context, ranks = ranks_of(self, given), limit] {
    context->communicator().warmup(ranks, limit);
    return true;
  });
}

}  // namespace

void bind_streams(nb::module_& module, nb::class_<PyCommunicator>& communicator) {
  bind_handle(module);
  nb::class_<PyCommunicatorOnStream>(
      module, "CommunicatorOnStream",
      "A communicator's operations in the order of a CUDA stream: see OnStream. Create it with "
      "Communicator.on.")
      .def(
          "send",
          [](PyCommunicatorOnStream& self, nb::handle buffer, nb::handle dst, nb::handle lane,
             nb::handle timeout, nb::handle size_from) {
            stream_send(*self.communicator->link(rank_of(dst, "dst"), nb::ellipsis()), self.stream,
                        {buffer, small_number(lane, kLane), timeout, size_from});
          },
          nb::arg("buffer").none(), nb::arg("dst").none(), nb::arg("lane").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(), nb::arg("size_from") = nb::none(),
          nb::sig("def send(self, buffer: onehop.buffers.Buffer, dst: "
                  "typing.SupportsIndex" OH_PYTHON_STREAM_ARGUMENTS("size_from") ") -> None"),
          "Sends to the rank dst: see OnStream.send. The first use connects, which blocks.")
      .def(
          "recv",
          [](PyCommunicatorOnStream& self, nb::handle buffer, nb::handle src, nb::handle lane,
             nb::handle timeout, nb::handle size_to) {
            stream_recv(*self.communicator->link(rank_of(src, "src"), nb::ellipsis()), self.stream,
                        {buffer, small_number(lane, kLane), timeout, size_to});
          },
          nb::arg("buffer").none(), nb::arg("src").none(), nb::arg("lane").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(), nb::arg("size_to") = nb::none(),
          nb::sig("def recv(self, buffer: onehop.buffers.Buffer, src: "
                  "typing.SupportsIndex" OH_PYTHON_STREAM_ARGUMENTS("size_to") ") -> None"),
          "Receives from the rank src: see OnStream.recv. The first use connects, which blocks.")
      .def("__repr__", [](const PyCommunicatorOnStream& self) {
        return "<onehop.CommunicatorOnStream rank " + own_rank(*self.communicator) + " of " +
               std::to_string(self.communicator->links.size()) + ", " + name_of(self.stream) + ">";
      });
  communicator
      .def(
          "on",
          [](nb::handle self, nb::handle stream) {
            return PyCommunicatorOnStream{nb::borrow(self), nb::inst_ptr<PyCommunicator>(self),
                                          given_stream(stream)};
          },
          nb::arg("stream").none(),
          nb::sig("def on(self, stream: onehop.devices.Stream) -> CommunicatorOnStream"),
          "Operations in the order of a CUDA stream of the endpoint's device: see Peer.on.")
      .def("device_handle", device_handle, nb::arg("lane").none(),
           nb::sig("def device_handle(self, lane: typing.SupportsIndex) -> CommunicatorHandle"),
           "The handle of a lane (0 to 15) of all ranks, for user kernels and their barrier.\n"
           "Connects to all ranks, at most 64.")
      .def("warmup", warmup, nb::arg("ranks") = nb::none(),
           nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def warmup(self, ranks: collections.abc.Iterable[typing.SupportsIndex] | None "
                   "= None, timeout: "
                   "float | None = ...) -> None"),
           "Connects to these ranks (None: all) and prepares their lanes: see "
           "Peer.warmup.\n" OH_PYTHON_TIMEOUT);
}

}  // namespace onehop::python
