// SPDX-License-Identifier: Apache-2.0
//
// onehop._bench: the timed loops for Python, which starts the sides and shows the rows. All loops
// run without the GIL. The payload functions serve the same loops written in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "floors.h"
#include "nccl.h"
#include "patterns.h"
#include "side.h"
#include "streams.h"

namespace bench {
namespace {

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: every binding names its arguments

using NoGil = nb::call_guard<nb::gil_scoped_release>;

Bytes bytes_of(const nb::bytes& given) {
  const auto* at = static_cast<const uint8_t*>(given.data());
  return {at, at + given.size()};
}

void bind_records(nb::module_& module) {
  nb::enum_<Mode>(module, "Mode", "How a row moves its bytes.")
      .value("SENDRECV", Mode::kSendRecv)
      .value("PUT", Mode::kPut)
      .value("GET", Mode::kGet)
      .value("PUT_SIGNAL", Mode::kPutSignal)
      .value("EVENT", Mode::kEvent)
      .value("PUT_PREPARED", Mode::kPutPrepared)
      .value("GET_PREPARED", Mode::kGetPrepared)
      .value("STREAM", Mode::kStream)
      .value("GRAPH", Mode::kGraph)
      .value("STREAM_PUT", Mode::kStreamPut)
      .value("GRAPH_PUT", Mode::kGraphPut)
      .value("KERNEL", Mode::kKernel)
      .value("KERNEL_SINGLE", Mode::kKernelSingle)
      .value("KERNEL_PUT", Mode::kKernelPut)
      .value("BULK", Mode::kBulk);
  nb::enum_<Memory>(module, "Memory", "Whose memory a row's bytes are in.")
      .value("HOST", Memory::kHost)
      .value("PINNED", Memory::kPinned)
      .value("CUDA", Memory::kCuda)
      .value("CUDA_VMM", Memory::kCudaVmm)
      .value("CUDA_POOL", Memory::kCudaPool)
      .value("CUDA_ASYNC", Memory::kCudaAsync)
      .value("CUDA_MANAGED", Memory::kCudaManaged);
  nb::enum_<Op>(module, "Op", "Which loop measures a row.")
      .value("LATENCY", Op::kLatency)
      .value("BANDWIDTH", Op::kBandwidth)
      .value("BATCH", Op::kBatch);
  nb::class_<Spec>(module, "Spec", "One row: both sides are given the same.")
      .def(nb::init<Op, Mode, size_t, size_t, size_t, size_t, size_t, size_t, bool, bool, bool,
                    bool, Memory, size_t, bool>(),
           "op"_a, "mode"_a, "size"_a, "iterations"_a, "warmup"_a, "window"_a, "blocks"_a,
           "threads"_a, "strided"_a, "shared"_a, "both"_a, "corrupt"_a, "memory"_a, "offset"_a,
           "stamped"_a)
      .def_ro("op", &Spec::op)
      .def_ro("mode", &Spec::mode)
      .def_ro("size", &Spec::size)
      .def_ro("iterations", &Spec::iterations)
      .def_ro("warmup", &Spec::warmup)
      .def_ro("window", &Spec::window)
      .def_ro("blocks", &Spec::blocks)
      .def_ro("strided", &Spec::strided)
      .def_ro("stamped", &Spec::stamped);
  nb::class_<Outcome>(module, "Outcome", "What one side measured and found.")
      .def_ro("samples_us", &Outcome::samples_us)
      .def_ro("post_us", &Outcome::post_us)
      .def_ro("seconds", &Outcome::seconds)
      .def_ro("bytes", &Outcome::bytes)
      .def_ro("wrong", &Outcome::wrong)
      .def_ro("path", &Outcome::path);
  nb::class_<SetupOutcome>(module, "SetupOutcome", "What it takes to make a link.")
      .def_ro("endpoint", &SetupOutcome::endpoint)
      .def_ro("connect", &SetupOutcome::connect)
      .def_ro("first", &SetupOutcome::first)
      .def_ro("further", &SetupOutcome::further)
      .def_ro("rss_per_peer", &SetupOutcome::rss_per_peer)
      .def_ro("pss_per_peer", &SetupOutcome::pss_per_peer)
      .def_ro("device_per_peer", &SetupOutcome::device_per_peer);
}

void bind_side(nb::module_& module) {
  nb::class_<Side>(module, "Side", "One side of a link; side 0 measures, side 1 answers.")
      .def(nb::init<int, const std::string&, std::optional<size_t>>(), "number"_a, "device"_a = "",
           "max_inline"_a = nb::none())
      .def_prop_ro("created_us", &Side::created_us)
      .def_prop_ro("max_inline", &Side::max_inline)
      .def("address",
           [](const Side& self) {
             const onehop::Bytes bytes = self.address();
             return nb::bytes(bytes.data(), bytes.size());
           })
      .def(
          "connect",
          [](Side& self, const nb::bytes& address) {
            const Bytes bytes = bytes_of(address);
            nb::gil_scoped_release release;
            self.connect(bytes);
          },
          "address"_a)
      .def("accept", &Side::accept, NoGil())
      .def("close", &Side::close, NoGil())
      .def("run", &side_row, "spec"_a, NoGil())
      .def("setup", &setup, "spec"_a, NoGil())
      .def(
          "why_no_kernels", [](const Side& self) { return why_no_kernels(self.device()); }, NoGil(),
          "Why the benchmark's own kernels cannot run; empty: they can.");
}

// A payload with the device that its memory is on, for loops written in Python.
struct Held {
  // `name`: empty for memory of the host.
  explicit Held(const std::string& name) {
    if (!name.empty()) device.emplace(name);
  }
  std::unique_ptr<Buffer> make_memory(const Spec& spec, size_t size) const {
    if (device) return std::make_unique<GpuBuffer>(*device, spec, size);
    return make_host_buffer(spec, size);
  }

  std::optional<Device> device;
  std::unique_ptr<Payload> payload;
  Buffer* memory = nullptr;
};
struct HeldSlots : Held {
  HeldSlots(const Spec& spec, int writer, bool spoils, bool fixed, const std::string& name)
      : Held(name),
        slots(
            new Slots(spec, {writer, spoils, fixed}, make_memory(spec, spec.size * spec.window))) {
    payload.reset(slots);
    memory = &slots->memory();
  }
  Slots* slots;
};
struct HeldBlocks : Held {
  HeldBlocks(const Spec& spec, int number)
      : Held(""),
        blocks(new Blocks(spec, number, make_memory(spec, spec.blocks * Blocks::pitch(spec)))) {
    payload.reset(blocks);
    memory = &blocks->memory();
  }
  Blocks* blocks;
};

using Part = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

void bind_payloads(nb::module_& module) {
  nb::class_<Held>(module, "Payload", "Messages of a row, and memory for them.")
      .def(
          "lay_out",
          [](Held& self, uint64_t pass, bool last) { self.payload->lay_out(pass, last); },
          "number"_a, "last"_a, "The giving side: new bytes for a pass.")
      .def(
          "clear", [](Held& self, uint64_t pass) { self.payload->clear(pass); }, "number"_a,
          "The taking side: poison before a pass.")
      .def(
          "mark", [](Held& self, uint64_t i, bool last) { self.payload->mark(i, last); }, "i"_a,
          "last"_a, "The giving side before message i.")
      .def(
          "expect", [](Held& self, uint64_t i) { self.payload->expect(i); }, "i"_a,
          "The taking side before message i.")
      .def(
          "check",
          [](Held& self, uint64_t i) {
            uint64_t unused = 0;
            return self.payload->check(i, &unused);
          },
          "i"_a, "Number of wrong bytes among the stamps of message i.")
      .def(
          "check_all",
          [](Held& self, uint64_t count) {
            uint64_t unused = 0;
            return self.payload->check_all(count, &unused);
          },
          "count"_a, "Number of wrong bytes of the last message of each slot.")
      .def(
          "memory",
          [](Held& self) {
            return Part(self.memory->data(), {self.memory->size()}, nb::find(self));
          },
          "All of it; of host memory.")
      .def_prop_ro(
          "nbytes", [](const Held& self) { return self.payload->bytes(); }, "Of a message.");
  nb::class_<HeldSlots, Held>(module, "Slots", "A slot for each message in flight.")
      .def(nb::init<const Spec&, int, bool, bool, const std::string&>(), "spec"_a, "writer"_a,
           "spoils"_a = true, "fixed"_a = false, "device"_a = "")
      .def(
          "array",
          [](HeldSlots& self, uint64_t i) {
            return Part(self.slots->place(i), {self.slots->bytes()}, nb::find(self));
          },
          "i"_a, "The slot of message i; of host memory.")
      .def(
          "address",
          [](const HeldSlots& self, uint64_t i) {
            return reinterpret_cast<uintptr_t>(self.slots->place(i));
          },
          "i"_a);
  nb::class_<HeldBlocks, Held>(module, "Blocks", "Batches of a row, in host memory.")
      .def(nb::init<const Spec&, int>(), "spec"_a, "number"_a)
      .def(
          "offset",
          [](const HeldBlocks& self, size_t i, bool target) {
            return self.blocks->offset(i, target);
          },
          "i"_a, "target"_a, "Where block i lies at the side that starts, or at the target.");
}

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

void bind_yardsticks(nb::module_& module) {
  nb::class_<Yardstick>(module, "Yardstick", "A side of what onehop is compared with.")
      .def(nb::init<int, const std::string&>(), "number"_a, "device"_a = "")
      .def("place", [](const Yardstick& self) { return self.meeting.place(); })
      .def(
          "join", [](Yardstick& self, const std::string& place) { self.meeting.join(place); },
          "place"_a, "Finds the page of side 0.")
      .def("floor", &Yardstick::floor, "spec"_a, "name"_a, NoGil(),
           "What the machine does without a library.")
      .def(
          "why_no_kernels",
          [](const Yardstick& self) { return why_no_kernels(self.device.value()); }, NoGil());
  nb::class_<Nccl>(module, "Nccl", "NCCL between two processes.")
      .def(
          "__init__",
          [](Nccl* self, Yardstick& side, const std::vector<std::string>& libraries) {
            new (self) Nccl(side.meeting, side.device.value(), libraries);
          },
          "side"_a, "libraries"_a, nb::keep_alive<1, 2>(), NoGil())
      .def("run", &Nccl::run, "spec"_a, NoGil())
      .def_prop_ro("init_ms", &Nccl::init_ms)
      .def_prop_ro("first_ms", &Nccl::first_ms)
      .def_prop_ro("device_bytes", &Nccl::device_bytes)
      .def_prop_ro("version", &Nccl::version);
}

void bind_patterns(nb::module_& module) {
  nb::enum_<Pattern>(module, "Pattern", "An exchange among ranks.")
      .value("SENDRECV", Pattern::kSendRecv)
      .value("SEND_MANY", Pattern::kSendMany)
      .value("RECV_MANY", Pattern::kRecvMany)
      .value("ALL_TO_ALL_V", Pattern::kAllToAllV)
      .value("DISPATCH", Pattern::kDispatch);
  nb::class_<PatternSpec>(module, "PatternSpec", "One row: all ranks are given the same.")
      .def(nb::init<Pattern, size_t, size_t, size_t, bool, Memory, bool>(), "pattern"_a, "size"_a,
           "iterations"_a, "warmup"_a, "graph"_a, "memory"_a, "corrupt"_a)
      .def("busiest", &busiest, "ranks"_a,
           "The most bytes that one rank sends to the others, or receives from them.");
  nb::class_<PatternRank>(module, "PatternRank", "A rank of the patterns.")
      .def(
          "__init__",
          [](PatternRank* self, uint32_t rank, uint32_t ranks, const std::string& device,
             const nb::bytes& id) {
            const Bytes bytes = bytes_of(id);
            nb::gil_scoped_release release;
            new (self) PatternRank(rank, ranks, device, bytes);
          },
          "rank"_a, "ranks"_a, "device"_a, "id"_a)
      .def("barrier", &PatternRank::barrier, NoGil())
      .def("run", &PatternRank::run, "spec"_a, NoGil());
  nb::class_<NcclRank>(module, "NcclRank", "NCCL's grouped sends and receives.")
      .def(nb::init<PatternRank&, const std::vector<std::string>&>(), "rank"_a, "libraries"_a,
           nb::keep_alive<1, 2>(), NoGil())
      .def_prop_ro("version", &NcclRank::version)
      .def("run", &NcclRank::run, "spec"_a, NoGil());
}

}  // namespace
}  // namespace bench

NB_MODULE(_bench, module) {
  using namespace bench;  // NOLINT: the module is its namespace's outside
  module.doc() = "Timed loops of the benchmark.";
  bind_records(module);
  bind_side(module);
  bind_payloads(module);
  nb::exception<GpuError>(module, "GpuError", PyExc_RuntimeError);
  bind_facts(module);
  bind_yardsticks(module);
  bind_patterns(module);
}
