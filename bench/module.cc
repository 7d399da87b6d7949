// SPDX-License-Identifier: Apache-2.0
//
// onehop._bench: the timed loops for Python, which starts the sides and shows the rows. All loops
// run without the GIL. The payload functions serve the same loops written in Python.
#include "bindings.h"
#include "floors.h"
#include "gpu_kernels.h"
#include "payload.h"
#include "setup.h"

namespace bench {
namespace {

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
  nb::class_<Spec>(module, "Spec", "One row: both sides are given the same.")
      .def(nb::init<>())
      .def_rw("mode", &Spec::mode)
      .def_rw("size", &Spec::size)
      .def_rw("iterations", &Spec::iterations)
      .def_rw("warmup", &Spec::warmup)
      .def_rw("window", &Spec::window)
      .def_rw("blocks", &Spec::blocks)
      .def_rw("threads", &Spec::threads)
      .def_rw("strided", &Spec::strided)
      .def_rw("shared", &Spec::shared)
      .def_rw("both", &Spec::both)
      .def_rw("memory", &Spec::memory)
      .def_rw("offset", &Spec::offset)
      .def_rw("stamped", &Spec::stamped)
      .def_rw("corrupt", &Spec::corrupt);
  nb::class_<Outcome>(module, "Outcome", "What one side measured and found.")
      .def_ro("samples_us", &Outcome::samples_us)
      .def_ro("post_us", &Outcome::post_us)
      .def_ro("seconds", &Outcome::seconds)
      .def_ro("bytes", &Outcome::bytes)
      .def_ro("wrong", &Outcome::wrong)
      .def_prop_ro("path",
                   [](const Outcome& self) { return std::string(oh_path_name(self.path)); });
  nb::class_<SetupOutcome>(module, "SetupOutcome", "What it takes to make a link.")
      .def_ro("endpoint", &SetupOutcome::endpoint)
      .def_ro("connect", &SetupOutcome::connect)
      .def_ro("first", &SetupOutcome::first)
      .def_ro("further", &SetupOutcome::further)
      .def_ro("rss_per_peer", &SetupOutcome::rss_per_peer)
      .def_ro("pss_per_peer", &SetupOutcome::pss_per_peer)
      .def_ro("device_per_peer", &SetupOutcome::device_per_peer);
  nb::class_<FloorSpec>(module, "FloorSpec", "One floor.")
      .def(nb::init<>())
      .def_rw("size", &FloorSpec::size)
      .def_rw("iterations", &FloorSpec::iterations)
      .def_rw("partner_cpu", &FloorSpec::partner_cpu)
      .def_rw("corrupt", &FloorSpec::corrupt);
}

void bind_side(nb::module_& module) {
  nb::class_<Side>(module, "Side", "One side of a link; side 0 measures, side 1 answers.")
      .def(nb::init<int, const std::string&, std::optional<size_t>>(), "number"_a, "device"_a = "",
           "max_inline"_a = nb::none())
      .def_prop_ro("created_us", &Side::created_us)
      .def_prop_ro("max_inline", &Side::max_inline)
      .def("address", giving<Side>(&Side::address))
      .def("connect", taking(&Side::connect), "address"_a)
      .def("accept", &Side::accept, NoGil())
      .def("close", &Side::close, NoGil())
      .def("latency", &latency, "spec"_a, NoGil())
      .def("bandwidth", &bandwidth, "spec"_a, NoGil())
      .def("batch", &batch, "spec"_a, NoGil())
      .def("setup", &setup, "spec"_a, NoGil())
      .def(
          "why_no_kernels", [](const Side& self) { return why_no_kernels(self.device()); }, NoGil(),
          "Why the benchmark's own kernels cannot run; empty: they can.");
}

void bind_payload(nb::module_& module) {
  module.attr("NO_ITERATION") = kNoIteration;
  module.def(
      "fill", [](Array data, uint64_t seed) { fill(data.data(), data.size(), seed); }, "data"_a,
      "seed"_a, "Lays down the pattern of a seed.");
  module.def(
      "poison", [](Array data) { poison(data.data(), data.size()); }, "data"_a,
      "Overwrites what must not be taken for new.");
  module.def(
      "count_wrong",
      [](Array data, uint64_t seed) { return count_wrong(data.data(), data.size(), seed); },
      "data"_a, "seed"_a, "Number of bytes that are not the pattern's.");
  module.def(
      "count_touched", [](Array data) { return count_touched(data.data(), data.size()); }, "data"_a,
      "Number of bytes that are not poisoned any more.");
  module.def(
      "stamp",
      [](Array data, uint64_t seed, uint64_t previous, uint64_t iteration) {
        stamp(data.data(), data.size(), seed, previous, iteration);
      },
      "data"_a, "seed"_a, "previous"_a, "iteration"_a, "Marks data as one message.");
  module.def(
      "check_stamps",
      [](Array data, uint64_t iteration) {
        return check_stamps(data.data(), data.size(), iteration);
      },
      "data"_a, "iteration"_a, "Number of wrong bytes among a message's stamps.");
  module.def(
      "poison_stamps",
      [](Array data, uint64_t iteration) { poison_stamps(data.data(), data.size(), iteration); },
      "data"_a, "iteration"_a, "Poisons where a message will have its stamps.");
  module.def(
      "check_message",
      [](Array data, uint64_t seed, uint64_t iteration) {
        return check_message(data.data(), data.size(), seed, iteration);
      },
      "data"_a, "seed"_a, "iteration"_a,
      "Number of wrong bytes of a message; takes its stamps back.");
}

}  // namespace
}  // namespace bench

NB_MODULE(_bench, module) {
  using namespace bench;  // NOLINT: the module is its namespace's outside
  module.doc() = "Timed loops of the benchmark.";
  bind_records(module);
  bind_side(module);
  bind_payload(module);
  bind_gpu(module);
  bind_patterns(module);
  module.def("floor_flag", &floor_flag, "spec"_a, NoGil(), "Two processes that spin on a flag.");
  module.def("floor_process_vm", &floor_process_vm, "spec"_a, NoGil(), "process_vm_readv.");
  module.def("floor_memcpy", &floor_memcpy, "spec"_a, NoGil(), "memcpy.");
}
