// SPDX-License-Identifier: Apache-2.0
//
// Lanes of a peer: made ready, reset, and as kernels use them.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>

#include "arguments.h"
#include "endpoint.h"
#include "stream.h"

namespace onehop::python {
namespace {

struct PyLaneHandle {
  std::shared_ptr<Link> link;  // its addresses are good while there is a link
  oh_lane_handle value;
};

void warmup(PyPeer& self, nb::handle timeout) {
  const std::shared_ptr<Link>& link = self.link;
  link->context->check();
  Timeout limit{timeout_ns(timeout, link->context->default_timeout_ns())};
  call_interruptibly([link, limit] {
    link->peer->warmup(limit);
    return true;
  });
}

void reset_lane(PyPeer& self, nb::handle given_lane, nb::handle timeout) {
  uint32_t lane = small_number(given_lane, kLane);
  const std::shared_ptr<Link>& link = self.link;
  link->context->check();
  Timeout limit{timeout_ns(timeout, link->context->default_timeout_ns())};
  call_interruptibly([link, lane, limit] {
    link->peer->reset_lane(lane, limit);
    return true;
  });
}

PyLaneHandle device_handle(PyPeer& self, nb::handle given_lane) {
  uint32_t lane = small_number(given_lane, kLane);
  WithoutGil release;
  return {self.link, self.link->peer->device_handle(lane)};
}

// (base, size) of a region, or of the slice.
std::pair<uint64_t, uint64_t> device_memory(const PyRemoteRegion& self) {
  auto region = self.hold();
  WithoutGil release;
  return {(*region)->device().base + self.offset, self.size};
}

void bind_handle(nb::module_& module) {
  nb::class_<PyLaneHandle> type(
      module, "LaneHandle",
      "The oh_lane_handle by which kernels use a lane (onehop/device.cuh): bytes(handle) are the "
      "128 "
      "of the struct, to be\npassed to a kernel by value. Create it with Peer.device_handle. Good "
      "until the peer is closed.");
  type.def("__bytes__",
           [](const PyLaneHandle& self) { return nb::bytes(&self.value, sizeof(self.value)); });
#define OH_PYTHON_FIELD(name, text) \
  type.def_prop_ro(#name, [](const PyLaneHandle& self) { return self.value.name; }, text)
  OH_PYTHON_FIELD(layout, "The version of the struct.");
  OH_PYTHON_FIELD(lane, "0 to 15.");
  OH_PYTHON_FIELD(flags, "OH_LANE_... of lane.h.");
  OH_PYTHON_FIELD(ring_shift, "The ring has 2**ring_shift lines of 16 bytes.");
  OH_PYTHON_FIELD(lines_at, "Where it begins, in the memory of either side.");
  OH_PYTHON_FIELD(chunks_at, "Where the chunks of large messages begin.");
  OH_PYTHON_FIELD(mine, "The address of our memory of the lane.");
  OH_PYTHON_FIELD(theirs, "The address of the peer's, as it is mapped here.");
  OH_PYTHON_FIELD(chunk_slots, "Chunks that are under way at most.");
  OH_PYTHON_FIELD(chunk_shift, "A chunk has 2**chunk_shift bytes.");
  OH_PYTHON_FIELD(token, "Of an operation that several blocks share; 0: none do.");
  OH_PYTHON_FIELD(follows, "The token before it in the same launch; 0: none.");
  OH_PYTHON_FIELD(notice, "The address of what lane and host tell each other.");
  OH_PYTHON_FIELD(imports, "The address of the peer's mapped memory; 0: none.");
  OH_PYTHON_FIELD(timeout_ns, "Nanoseconds after which a wait ends.");
  OH_PYTHON_FIELD(small_max, "Messages of more bytes are sent as large ones.");
  OH_PYTHON_FIELD(signals, "The address of our counts.");
  OH_PYTHON_FIELD(their_signals, "The address of the peer's, as it is mapped here.");
#undef OH_PYTHON_FIELD
  type.def("__repr__", [](const PyLaneHandle& self) {
    return "<onehop.LaneHandle lane " + std::to_string(self.value.lane) + " of peer " +
           std::to_string(self.link->id) + ">";
  });
}

}  // namespace

void bind_lanes(nb::module_& module, nb::class_<PyPeer>& peer) {
  bind_handle(module);
  peer.def(
          "on",
          [](PyPeer& self, nb::handle stream) {
            return PyOnStream{self.link, given_stream(stream)};
          },
          nb::arg("stream").none(),
          nb::sig("def on(self, stream: onehop.devices.Stream) -> OnStream"),
          "Operations in the order of a CUDA stream of the endpoint's device: of torch, cupy, "
          "numba, "
          "cuda.core, or a raw one\nas an integer. InvalidType: it is none.")
      .def("warmup", warmup, nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def warmup(self, timeout: float | None = ...) -> None"),
           "Connects the lanes now, and makes ready what they need; without it the first operation "
           "on a stream does, which\nmust not be captured. " OH_PYTHON_TIMEOUT
           " OperationError with Status.NOT_VIABLE: neither\nkernels nor the host carry what "
           "streams say to "
           "the peer, and why.")
      .def("device_handle", device_handle, nb::arg("lane").none(),
           nb::sig("def device_handle(self, lane: typing.SupportsIndex) -> LaneHandle"),
           "What kernels of the caller's own use a lane (0 to 15) by. Connects the lanes, if need "
           "be.")
      .def("reset_lane", reset_lane, nb::arg("lane").none(),
           nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def reset_lane(self, lane: typing.SupportsIndex, timeout: float | None = ...) "
                   "-> None"),
           "Makes a lane that has failed usable again, at both sides: ends what waits on it, "
           "forgets "
           "its messages. Either\nside may call, or both. " OH_PYTHON_TIMEOUT)
      .def(
          "stream_info", [](PyPeer& self) { return peer_stream_info(*self.link); },
          nb::sig("def stream_info(self) -> onehop.records.StreamInfo"),
          "What streams can expect of this peer.");
}

void bind_remote_memory(nb::class_<PyRemoteRegion>& type) {
  type.def(
      "device_memory", device_memory,
      "(address, bytes) of the region, or of this slice, as our GPU reaches it: for kernels that "
      "put into it. Good until it\nis detached. OperationError with Status.NOT_VIABLE: it cannot "
      "be mapped here.");
}

}  // namespace onehop::python
