// SPDX-License-Identifier: Apache-2.0
//
// onehop._bench: the timed loops for Python, which starts the sides and prints the rows. All loops
// run without the GIL. The payload functions serve the same loops written in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "loops.h"
#include "patterns.h"
#include "side.h"
#include "streams.h"
#include "yardsticks.h"

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
      .value("PUT_STREAM", Mode::kPutStream)
      .value("GET_STREAM", Mode::kGetStream)
      .value("STREAM", Mode::kStream)
      .value("STREAM_PUT", Mode::kStreamPut)
      .value("KERNEL", Mode::kKernel)
      .value("KERNEL_SINGLE", Mode::kKernelSingle)
      .value("KERNEL_PUT", Mode::kKernelPut)
      .value("BULK", Mode::kBulk)
      .value("SEND_MANY", Mode::kSendMany)
      .value("RECV_MANY", Mode::kRecvMany)
      .value("ALL_TO_ALL_V", Mode::kAllToAllV)
      .value("DISPATCH", Mode::kDispatch);
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
      .value("BATCH", Op::kBatch)
      .value("PATTERNS", Op::kPatterns);
  nb::class_<Spec>(module, "Spec", "One row: both sides are given the same.")
      .def(nb::init<Op, Mode, size_t, size_t, size_t, size_t, size_t, size_t, bool, bool, bool,
                    bool, bool, Memory, size_t, bool>(),
           "op"_a, "mode"_a, "size"_a, "iterations"_a, "warmup"_a, "window"_a, "blocks"_a,
           "threads"_a, "strided"_a, "shared"_a, "graph"_a, "both"_a, "corrupt"_a, "memory"_a,
           "offset"_a, "stamped"_a)
      .def_ro("op", &Spec::op)
      .def_ro("mode", &Spec::mode)
      .def_ro("size", &Spec::size)
      .def_ro("iterations", &Spec::iterations)
      .def_ro("window", &Spec::window)
      .def_ro("blocks", &Spec::blocks)
      .def_ro("strided", &Spec::strided);
  nb::class_<Outcome>(module, "Outcome", "What one side measured and found.")
      .def_ro("samples_us", &Outcome::samples_us)
      .def_rw("post_us", &Outcome::post_us)
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
          "why_no_kernel",
          [](const Side& self, const std::string& name) {
            return why_no_kernel(self.device(), name);
          },
          "name"_a, NoGil(), "Why a kernel of the benchmark cannot run; empty: it can.");
}

// ---- Rows whose operations are Python functions

// The Python functions for message i, with the meaning they have in Wire: those that start return a
// request, the others move the message. Empty: the rows have no such operation.
struct Verbs {
  nb::object send;
  nb::object recv;
  nb::object isend;
  nb::object irecv;
};

using Swap = nb::typed<nb::callable, nb::bytes(nb::bytes)>;

// The link to the other side through a Python function that exchanges bytes.
class PythonLink : public Link {
 public:
  PythonLink(int number, Swap swap) : number_(number), swap_(std::move(swap)) {}
  int number() const override { return number_; }
  Bytes swap(const Bytes& bytes) override {
    return bytes_of(nb::cast<nb::bytes>(swap_(nb::bytes(bytes.data(), bytes.size()))));
  }

 private:
  int number_;
  Swap swap_;
};

// A row of Python operations, measured by the same loops as all others. They hold the GIL, except
// inside the package's calls.
class PythonRow final : public SlotWire {
 public:
  PythonRow(int number, Swap swap, const Spec& spec, const std::string& device)
      : SlotWire(python_link_), python_link_(number, std::move(swap)), spec_(spec) {
    if (!device.empty()) device_.emplace(device);
    if (spec.op == Op::kBatch) {
      blocks_ = give_or_take_blocks(spec, [&](size_t size) { return make_memory(size); });
    } else {
      give_and_take(spec, [&] { return make_memory(spec.size * spec.window); });
    }
    requests_.resize(2 * spec.window);
  }

  // Drops the functions at the end: they may hold a reference to the owner of this row.
  Outcome run(const Verbs& verbs) {
    verbs_ = &verbs;
    Outcome outcome = bench::run(*this, spec_);
    requests_.clear();
    last_ = {};
    return outcome;
  }

  void isend(uint64_t i) override { requests_[slot(i)] = verbs_->isend(i); }
  void sent(uint64_t i) override { note_sent(requests_[slot(i)].attr("wait")()); }
  void send(uint64_t i) override { note_sent(verbs_->send(i)); }
  void irecv(uint64_t i) override { requests_[spec_.window + slot(i)] = verbs_->irecv(i); }
  void received(uint64_t i) override { note(requests_[spec_.window + slot(i)].attr("wait")()); }
  void recv(uint64_t i) override { note(verbs_->recv(i)); }
  std::string path() const override {
    return last_.is_valid() ? nb::cast<std::string>(last_.attr("path")) : "none";
  }

  // The memory of one direction or of a batch.
  Buffer* buffer(bool giving) { return blocks_ ? &blocks_->memory() : slots_memory(giving); }
  const Blocks* blocks() const { return blocks_; }
  const Spec& spec() const { return spec_; }

 private:
  std::unique_ptr<Buffer> make_memory(size_t size) const {
    if (device_) return std::make_unique<GpuBuffer>(*device_, spec_, size);
    return make_host_buffer(spec_, size);
  }
  Buffer* slots_memory(bool giving) {
    Slots* slots = giving ? from_ : to_;
    return slots ? &slots->memory() : nullptr;
  }
  size_t slot(uint64_t i) const { return i % spec_.window; }
  void note(nb::object moved) {
    if (!moved.is_none()) last_ = std::move(moved);
  }
  // Only the receiver of a message knows its path.
  void note_sent(nb::object moved) {
    if (spec_.mode != Mode::kSendRecv) note(std::move(moved));
  }

  PythonLink python_link_;
  const Spec spec_;
  std::optional<Device> device_;
  Blocks* blocks_ = nullptr;
  const Verbs* verbs_ = nullptr;
  std::vector<nb::object> requests_;  // of sends, then of receives
  nb::object last_;
};

using Array = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

void bind_python_rows(nb::module_& module) {
  nb::class_<PythonRow>(module, "PythonRow", "A row whose operations are functions.")
      .def(nb::init<int, Swap, const Spec&, const std::string&>(), "number"_a, "swap"_a, "spec"_a,
           "device"_a = "")
      .def(
          "run",
          [](PythonRow& self, nb::object send, nb::object recv, nb::object isend,
             nb::object irecv) { return self.run({send, recv, isend, irecv}); },
          "send"_a = nb::none(), "recv"_a = nb::none(), "isend"_a = nb::none(),
          "irecv"_a = nb::none(), "Each takes the number of a message; isend, irecv start it.")
      .def(
          "memory",
          [](PythonRow& self, bool giving) -> std::optional<Array> {
            Buffer* buffer = self.buffer(giving);
            if (!buffer) return std::nullopt;
            return Array(buffer->data(), {buffer->size()}, nb::find(self));
          },
          "giving"_a, "Host memory of all slots that this side gives or takes; of a batch all.")
      .def(
          "address",
          [](PythonRow& self, bool giving) {
            Buffer* buffer = self.buffer(giving);
            return buffer ? reinterpret_cast<uintptr_t>(buffer->place()) : 0;
          },
          "giving"_a, "Where such memory is; 0: there is none.")
      .def(
          "offsets",
          [](const PythonRow& self, bool target) {
            if (!self.blocks()) throw std::invalid_argument("only a batch has blocks");
            std::vector<size_t> offsets;
            for (size_t i = 0; i < self.spec().blocks; ++i) {
              offsets.push_back(self.blocks()->offset(i, target));
            }
            return offsets;
          },
          "target"_a, "Where a batch's blocks lie at the side that starts, or at the target.");
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
          "why_no_kernel",
          [](const Yardstick& self, const std::string& name) {
            return why_no_kernel(self.device.value(), name);
          },
          "name"_a, NoGil());
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
      .def("sync", &PatternRank::sync, NoGil())
      .def("run", &PatternRank::run, "spec"_a, NoGil());
  module.def("busiest", &busiest, "spec"_a, "ranks"_a,
             "The most bytes of a pattern that one rank sends to the others, or receives.");
  nb::class_<Nccl>(module, "Nccl", "NCCL between two processes, or among ranks.")
      .def(
          "__init__",
          [](Nccl* self, Yardstick& side, const std::vector<std::string>& libraries,
             bool registered) {
            new (self) Nccl(side.meeting, 2, side.device.value(), libraries, registered);
          },
          "side"_a, "libraries"_a, "registered"_a, nb::keep_alive<1, 2>(), NoGil())
      .def(
          "__init__",
          [](Nccl* self, PatternRank& rank, const std::vector<std::string>& libraries,
             bool registered) {
            new (self) Nccl(rank, rank.ranks(), rank.device(), libraries, registered);
          },
          "rank"_a, "libraries"_a, "registered"_a, nb::keep_alive<1, 2>(), NoGil())
      .def("run", &Nccl::run, "spec"_a, NoGil())
      .def_prop_ro("init_ms", &Nccl::init_ms)
      .def_prop_ro("first_ms", &Nccl::first_ms)
      .def_prop_ro("device_bytes", &Nccl::device_bytes)
      .def_prop_ro("version", &Nccl::version);
}

}  // namespace
}  // namespace bench

NB_MODULE(_bench, module) {
  using namespace bench;  // NOLINT: the module is its namespace's outside
  module.doc() = "Timed loops of the benchmark.";
  bind_records(module);
  bind_side(module);
  bind_python_rows(module);
  nb::exception<GpuError>(module, "GpuError", PyExc_RuntimeError);
  module.def("cuda_library", &GpuDriver::library, "Where the CUDA driver is looked for.");
  module.def(
      "cuda_version", [] { return GpuDriver::open().version(); }, NoGil(),
      "13000: CUDA 13.0. Raises GpuError if there is no driver.");
  bind_yardsticks(module);
}
