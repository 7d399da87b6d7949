// SPDX-License-Identifier: Apache-2.0
#include "bindings.h"
#include "gpu_floors.h"
#include "line_floor.h"
#include "nccl.h"

namespace bench {
namespace {

// A block with the device it is on, for loops written in Python.
class OwnedBlock {
 public:
  OwnedBlock(const std::string& device, Memory kind, size_t size)
      : device_(device), block_(device_, kind, size) {}
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(block_.data()); }
  size_t size() const { return block_.size(); }
  void write(const Array& from) {
    check(from.size());
    device_.copy(block_.data(), from.data(), from.size());
  }
  void read(const Array& to) {
    check(to.size());
    device_.copy(to.data(), block_.data(), to.size());
  }

 private:
  void check(size_t size) const {
    if (size > block_.size()) throw std::invalid_argument("the array is longer than the block");
  }

  Device device_;
  GpuBlock block_;
};

void bind_facts(nb::module_& module) {
  nb::class_<DeviceFacts>(module, "Gpu", "One device, as the driver describes it.")
      .def_ro("name", &DeviceFacts::name)
      .def_ro("uuid", &DeviceFacts::uuid)
      .def_ro("pci", &DeviceFacts::pci)
      .def_ro("numa", &DeviceFacts::numa)
      .def_ro("major", &DeviceFacts::major)
      .def_ro("minor", &DeviceFacts::minor)
      .def_ro("peers", &DeviceFacts::peers);
  nb::class_<GpuFacts>(module, "GpuFacts", "The driver and its devices.")
      .def_ro("library", &GpuFacts::library)
      .def_ro("version", &GpuFacts::version)
      .def_ro("devices", &GpuFacts::devices);
  module.def("gpu_facts", &gpu_facts, NoGil(), "Raises GpuError if there is no driver.");
}

void bind_block(nb::module_& module) {
  nb::class_<OwnedBlock>(module, "GpuBlock", "Memory of a device, of any kind.")
      .def(nb::init<const std::string&, Memory, size_t>(), "device"_a, "kind"_a, "size"_a)
      .def_prop_ro("address", &OwnedBlock::address)
      .def_prop_ro("size", &OwnedBlock::size)
      .def("write", &OwnedBlock::write, "data"_a, "Copies an array to its beginning.")
      .def("read", &OwnedBlock::read, "data"_a, "Copies its beginning to an array.");
}

// What all who are compared with have: each side gives its hello to the other, and measures.
template <typename Pair>
nb::class_<Pair>& bind_pair(nb::class_<Pair>& pair) {
  return pair.def("hello", giving<Pair>(&Pair::hello))
      .def("meet", taking<Pair>(&Pair::meet), "hello"_a)
      .def("latency", &Pair::latency, "spec"_a, NoGil());
}

void bind_pairs(nb::module_& module) {
  nb::class_<PutFlag> put_flag(module, "PutFlag", "Copies into mapped memory, and a flag.");
  put_flag.def(nb::init<int, const std::string&, size_t>(), "number"_a, "device"_a, "largest"_a);
  bind_pair(put_flag);
  nb::class_<LineFloor> lines(module, "LineFloor", "Bare lines in mapped memory, by kernels.");
  lines.def(nb::init<int, const std::string&, size_t>(), "number"_a, "device"_a, "largest"_a)
      .def("why_not", &LineFloor::why_not, NoGil(), "Empty: the kernels are there.");
  bind_pair(lines);
  nb::class_<Nccl> nccl(module, "Nccl", "NCCL between two processes.");
  nccl.def(nb::init<int, const std::string&, const std::vector<std::string>&, size_t>(), "number"_a,
           "device"_a, "libraries"_a, "largest"_a);
  bind_pair(nccl)
      .def("bandwidth", &Nccl::bandwidth, "spec"_a, NoGil())
      .def_prop_ro("init_ms", &Nccl::init_ms)
      .def_prop_ro("first_ms", &Nccl::first_ms)
      .def_prop_ro("device_bytes", &Nccl::device_bytes)
      .def_prop_ro("version", &Nccl::version);
}

}  // namespace

void bind_gpu(nb::module_& module) {
  nb::exception<GpuError>(module, "GpuError", PyExc_RuntimeError);
  bind_facts(module);
  bind_block(module);
  bind_pairs(module);
  module.def("floor_gpu_memcpy", &floor_gpu_memcpy, "spec"_a, "source"_a, "target"_a, NoGil(),
             "Copies between two devices within this process.");
}

}  // namespace bench
