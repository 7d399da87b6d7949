// SPDX-License-Identifier: Apache-2.0
//
// Lanes of a peer: warmup, reset, and handles for kernels.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>

#include "arguments.h"
#include "endpoint.h"
#include "stream.h"

namespace onehop::python {
namespace {

struct PyLaneHandle {
  std::shared_ptr<Link> link;  // keeps the link, whose addresses the handle holds
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

// Device address and size of a remote region or a slice of one.
std::pair<uint64_t, uint64_t> device_memory(const PyRemoteRegion& self) {
  auto region = self.hold();
  WithoutGil release;
  return {(*region)->device().base + self.offset, self.size};
}

void bind_handle(nb::module_& module) {
  nb::class_<PyLaneHandle> type(
      module, "LaneHandle",
      "The oh_lane_handle by which kernels use a lane (onehop/device.cuh).\n"
      "bytes(handle) is the struct of 128 bytes: pass it to a kernel by value. Valid\n"
      "until the peer is closed. Create it with Peer.device_handle.");
  type.def("__bytes__",
           [](const PyLaneHandle& self) { return nb::bytes(&self.value, sizeof(self.value)); });
#define OH_PYTHON_FIELD(name, text) \
  type.def_prop_ro(#name, [](const PyLaneHandle& self) { return self.value.name; }, text)
  OH_PYTHON_FIELD(layout, "The version of the struct.");
  OH_PYTHON_FIELD(lane, "0 to 15.");
  OH_PYTHON_FIELD(flags, "OH_LANE_... of lane.h.");
  OH_PYTHON_FIELD(ring_shift, "The ring has 2**ring_shift lines of 16 bytes.");
  OH_PYTHON_FIELD(lines_at, "The offset of the ring, in the memory of either side.");
  OH_PYTHON_FIELD(chunks_at, "The offset of the chunks of large messages.");
  OH_PYTHON_FIELD(mine, "The address of this side's memory of the lane.");
  OH_PYTHON_FIELD(theirs, "The address of the peer's memory of the lane, as it is mapped here.");
  OH_PYTHON_FIELD(chunk_slots, "The most chunks in flight.");
  OH_PYTHON_FIELD(chunk_shift, "A chunk has 2**chunk_shift bytes.");
  OH_PYTHON_FIELD(token, "The token of an operation that several blocks share; 0: not shared.");
  OH_PYTHON_FIELD(follows, "The token before it in the same launch; 0: none.");
  OH_PYTHON_FIELD(notice, "The address of the words that the lane and the host share.");
  OH_PYTHON_FIELD(imports, "The address of the peer's mapped memory; 0: none.");
  OH_PYTHON_FIELD(timeout_ns, "The limit of each wait, in nanoseconds.");
  OH_PYTHON_FIELD(small_max, "Bytes; longer messages are sent as large ones.");
  OH_PYTHON_FIELD(signals, "The address of this side's signal counts.");
  OH_PYTHON_FIELD(their_signals,
                  "The address of the peer's signal counts, as they are mapped here.");
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
          "Operations in the order of a CUDA stream of the endpoint's device.\n\n"
          "stream: of torch, cupy, numba or cuda.core, or a raw stream as an integer.\n"
          "InvalidType: it is not a stream.")
      .def("warmup", warmup, nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def warmup(self, timeout: float | None = ...) -> None"),
           "Connects the lanes now and allocates what they need. Otherwise the first stream\n"
           "operation does, which must not be captured.\n\n" OH_PYTHON_TIMEOUT
           " OperationError with Status.NOT_VIABLE: neither kernels nor the host\n"
           "can carry stream operations to the peer; the text says why.")
      .def("device_handle", device_handle, nb::arg("lane").none(),
           nb::sig("def device_handle(self, lane: typing.SupportsIndex) -> LaneHandle"),
           "The handle of a lane (0 to 15) for user kernels. Connects the lanes if\n"
           "necessary.")
      .def("reset_lane", reset_lane, nb::arg("lane").none(),
           nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def reset_lane(self, lane: typing.SupportsIndex, timeout: float | None = ...) "
                   "-> None"),
           "Makes a failed lane usable again, at both sides: ends the operations that wait\n"
           "on it and discards its messages. Either side, or both, may call. " OH_PYTHON_TIMEOUT)
      .def(
          "stream_info", [](PyPeer& self) { return peer_stream_info(*self.link); },
          nb::sig("def stream_info(self) -> onehop.records.StreamInfo"),
          "The stream domain of this peer: path, limits and memory.");
}

void bind_remote_memory(nb::class_<PyRemoteRegion>& type) {
  type.def("device_memory", device_memory,
           "(address, size in bytes) of the region or slice, as mapped on this side's GPU:\n"
           "for kernels that put into it. Valid until the region is detached. OperationError\n"
           "with Status.NOT_VIABLE: it cannot be mapped here.");
}

}  // namespace onehop::python
