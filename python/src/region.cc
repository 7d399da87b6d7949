// SPDX-License-Identifier: Apache-2.0
#include "region.h"

#include <nanobind/stl/string.h>

#include <chrono>
#include <string>

#include "arguments.h"
#include "bytes.h"
#include "errors.h"
#include "interrupt.h"
#include "orphans.h"

namespace onehop::python {
namespace {

// How long the release of a region waits for peers that access it. An access takes microseconds
// unless the peer is stopped.
constexpr Timeout kLastWait{1'000'000};
constexpr Timeout kAtOnce{1};  // the shortest timeout: 0 is the default
constexpr std::chrono::milliseconds kLookInterval{10};

// Deregisters the region; returns whether no peer accesses the memory any more.
bool end_region(Region& region, Timeout timeout) {
  try {
    region.deregister(timeout);
  } catch (const TimeoutError&) {
    return false;
  } catch (const Error&) {
    // The endpoint is closed or belongs to the parent of fork(): the region is already retired.
  }
  return true;
}

// A region that a stopped peer still accesses. Each check takes the lock of every link, so checks
// are rate-limited.
struct RegionOrphan final : Orphan {
  std::shared_ptr<Owned<Region>> region;
  std::unique_ptr<Buffer> buffer;
  std::chrono::steady_clock::time_point next_look{};

  bool try_release() override {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look) return false;
    next_look = now + kLookInterval;
    return end_region(**region, kAtOnce);
  }
};

PyTypeObject* g_region_type = nullptr;

std::string range_text(const PyRegion& region) {
  return std::to_string(region.offset) + ":" + std::to_string(region.offset + region.size);
}

void deregister(PyRegion& self, nb::handle timeout) {
  self.memory->context->check();
  Timeout limit{timeout_ns(timeout, self.memory->context->default_timeout_ns())};
  call_interruptibly([region = self.memory->region, limit] {
    (*region)->deregister(limit);
    return true;
  });
}

nb::bytes descriptor(const PyRegion& self) {
  if (self.size != self.memory->buffer->size()) {
    raise_invalid("bytes " + range_text(self) +
                  " of a region have no descriptor of their own: pass that of the whole region, "
                  "and slice at the other side");
  }
  return to_bytes((*self.memory->region)->descriptor());
}

}  // namespace

RegionMemory::RegionMemory(std::shared_ptr<Context> owner, nb::handle object, Access of_peers)
    : context(std::move(owner)),
      buffer(
          std::make_unique<Buffer>(object, Wanted{of_peers, context->no_device(), /*lasts=*/true})),
      access(of_peers) {
  buffer->forget_stream();
  EndpointView endpoint = context->endpoint();
  region = std::make_shared<Owned<Region>>(
      access == Access::kWrite ? endpoint.register_memory(buffer->data(), buffer->size())
                               : endpoint.register_read_only(buffer->data(), buffer->size()));
}

RegionMemory::~RegionMemory() {
  if (!region || end_region(**region, kLastWait)) return;
  auto orphan = std::make_unique<RegionOrphan>();
  orphan->region = std::move(region);
  orphan->buffer = std::move(buffer);
  orphans().keep(std::move(orphan));
}

const PyRegion* as_region(nb::handle object) {
  // A subclass cannot be instantiated, so comparing the type is enough.
  return Py_TYPE(object.ptr()) == g_region_type ? nb::inst_ptr<PyRegion>(object) : nullptr;
}

PyRemoteRegion& remote_of(nb::handle object) {
  if (!nb::isinstance<PyRemoteRegion>(object)) {
    refuse_type(object, {"remote", "a RemoteRegion, of Peer.attach, or a slice of one"});
  }
  return *nb::inst_ptr<PyRemoteRegion>(object);
}

std::shared_ptr<Owned<RemoteRegion>> PyRemoteRegion::hold() const {
  if (!memory->region) raise_invalid("the remote region was detached");
  return memory->region;
}

Slice slice_of(nb::handle key, size_t size) {
  if (!PySlice_Check(key.ptr())) {
    refuse_type(key, {"key", "a slice [first:last], in bytes"});
  }
  nb::object first = key.attr("start");
  nb::object last = key.attr("stop");
  nb::object step = key.attr("step");
  if (!step.is_none() && !step.equal(nb::int_(1))) {
    raise_invalid("a region is sliced in steps of 1 byte: for strides see put_batch");
  }
  auto at = [&](const nb::object& index, size_t standard) -> size_t {
    if (index.is_none()) return standard;
    if (!PyIndex_Check(index.ptr())) refuse_type(index, {"index", "a place in bytes"});
    Py_ssize_t value = PyNumber_AsSsize_t(index.ptr(), nullptr);  // saturates on overflow
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    if (value < 0) value += static_cast<Py_ssize_t>(size);
    if (value < 0 || static_cast<size_t>(value) > size) {
      raise_range("index " + shown(index) + " of a region of " + std::to_string(size) + " bytes");
    }
    return static_cast<size_t>(value);
  };
  size_t from = at(first, 0);
  size_t to = at(last, size);
  if (to < from) {
    raise_range("bytes " + std::to_string(from) + " to " + std::to_string(to) +
                ": a slice ends behind its start");
  }
  return {from, to - from};
}

void bind_region(nb::module_& module) {
  nb::class_<PyRegion> type(
      module, "Region", nb::is_weak_referenceable(),
      "Registered memory of this process, or a slice of it: region[first:last], in\n"
      "bytes. It can be sent and received like any buffer. A Region keeps its buffer\n"
      "alive. It is deregistered when it and all its slices are dropped. Create it with\n"
      "Endpoint.register.");
  g_region_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  type.def("__len__", [](const PyRegion& self) { return self.size; })
      .def(
          "__getitem__",
          [](const PyRegion& self, nb::handle key) {
            Slice part = slice_of(key, self.size);
            return PyRegion{self.memory, self.offset + part.offset, part.size};
          },
          nb::arg("key").none(), nb::sig("def __getitem__(self, key: slice) -> Region"),
          "A slice of the same registration. OutOfRange: it is not within the region.")
      .def_prop_ro(
          "descriptor", descriptor,
          "Bytes for Peer.attach at a peer. They describe the whole region: slice the\n"
          "RemoteRegion there. Any holder with a link to this endpoint may read the region\n"
          "and, unless it was registered with access=\"r\", write it.")
      .def("deregister", deregister, nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def deregister(self, timeout: float | None = ...) -> None"),
           "Deregisters the region and all its slices. After it returns no peer accesses the\n"
           "memory.\n\n"
           "TimeoutError: a peer is stopped during an access; keep the memory.")
      .def("__repr__",
           [](const PyRegion& self) { return "<onehop.Region bytes " + range_text(self) + ">"; });

  nb::class_<PyRemoteRegion> remote(
      module, "RemoteRegion", nb::is_weak_referenceable(),
      "A region of a peer, or a slice of it: remote[first:last], in bytes. Create it\n"
      "with Peer.attach.");
  bind_remote_memory(remote);
  remote.def("__len__", [](const PyRemoteRegion& self) { return self.size; })
      .def(
          "__getitem__",
          [](const PyRemoteRegion& self, nb::handle key) {
            Slice part = slice_of(key, self.size);
            return PyRemoteRegion{self.memory, self.offset + part.offset, part.size};
          },
          nb::arg("key").none(), nb::sig("def __getitem__(self, key: slice) -> RemoteRegion"),
          "A slice. OutOfRange: it is not within the region.")
      .def_prop_ro(
          "read_only", [](const PyRemoteRegion& self) { return (*self.hold())->is_read_only(); },
          "Whether the owner registered it with access=\"r\": puts then fail.")
      .def(
          "detach", [](PyRemoteRegion& self) { self.memory->region.reset(); },
          "Releases the peer's memory, for all slices too.")
      .def("__repr__", [](const PyRemoteRegion& self) {
        return "<onehop.RemoteRegion bytes " + std::to_string(self.offset) + ":" +
               std::to_string(self.offset + self.size) + ">";
      });
}

}  // namespace onehop::python
