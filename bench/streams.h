// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered measurements: the benchmark's own kernels, timestamps, work that is replayed as a
// graph, and the loop over them, which is the same for onehop, NCCL and floors.
//
// Threading: each belongs to one thread, and its device's context is current there.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "gpu.h"
#include "kernels.h"
#include "wire.h"

namespace bench {

// Why a kernel cannot run on the device; empty: it can.
std::string why_no_kernel(const Device& device, const std::string& name);

class Kernels {
 public:
  // GpuError: the build has no kernels, or none for this device.
  explicit Kernels(const Device& device);
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  ~Kernels();

  cuda::Function find(const char* name) const;
  // Launches on the device's stream.
  template <typename Args>
  void launch(cuda::Function kernel, unsigned blocks, unsigned threads, Args args) const {
    void* arguments[] = {&args};
    BENCH_CUDA(device_.driver(), launch_kernel, kernel, blocks, 1, 1, threads, 1, 1, 0,
               device_.stream(), arguments, nullptr);
  }
  // As launch(); on GPUs that support it (sm_90, CUDA 12.3), the kernel starts while the previous
  // one ends.
  template <typename Args>
  void launch_early(cuda::Function kernel, unsigned blocks, unsigned threads, Args args) const {
    if (!early_) return launch(kernel, blocks, threads, args);
    cuda::LaunchAttribute early{};
    early.id = cuda::kLaunchProgrammaticSerialization;
    early.value.programmatic_serialization = 1;
    cuda::LaunchConfig config{};
    config.grid_x = blocks;
    config.block_x = threads;
    config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
    config.stream = device_.stream();
    config.attributes = &early;
    config.attribute_count = 1;
    void* arguments[] = {&args};
    BENCH_CUDA(device_.driver(), launch_kernel_ex, &config, kernel, arguments, nullptr);
  }

 private:
  const Device& device_;
  cuda::Module module_ = nullptr;
  bool early_ = false;
};

// Timestamps in the device's stream, and the time between them.
class Marks {
 public:
  Marks(const Device& device, size_t count);
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;
  ~Marks();

  // Records the next timestamp.
  void set();
  // Microseconds between two timestamps that the stream has passed.
  double between(size_t from, size_t to) const;
  size_t count() const { return events_.size(); }

 private:
  const Device& device_;
  std::vector<cuda::Event> events_;
  size_t next_ = 0;
};

// Work repeated `times` times on the device's stream: enqueued each time, or captured once and
// replayed as a graph.
class Work {
 public:
  using Body = std::function<void()>;
  Work(const Device& device, Body body, size_t times, bool as_graph);
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work();

  void enqueue() const;

 private:
  void capture();

  const Device& device_;
  Body body_;
  size_t times_;
  cuda::Graph graph_ = nullptr;
  cuda::GraphExec ready_ = nullptr;
};

// A row timed on a stream. begin() and end() write and check new bytes while nothing is in flight.
struct StreamRow {
  const Device& device;
  Work::Body round;                      // enqueues one operation
  std::function<void(bool last)> begin;  // `last`: the timed operations follow
  std::function<void()> end;
  // Checked operations, run twice before the timed ones: enqueued directly, then like the timed
  // ones.
  uint64_t whole;
  size_t warmup;  // operations
  size_t each;    // operations per sample
  size_t samples;
  bool graph = false;
  Work::Body checked{};  // enqueued instead of `round` for checked operations
  Work::Body confirm{};  // enqueued after the timed operations
};
// Returns the microseconds of each sample, then those from the first sample until the confirmation.
std::vector<double> time_on_stream(const StreamRow& row);

// A latency sample is half the mean of up to 50 round trips; a pattern sample is the mean of as
// many exchanges; a bandwidth sample is the mean of a tenth of the messages. Timed iterations are
// rounded to whole samples.
//
// After them it enqueues as many operations, or 256 MiB, with distinct bytes that are all checked;
// copies between them provide and save the bytes. For batches that get, whose target is passive, 8
// operations (one if larger than 4 MiB) run one at a time instead.
Outcome stream_row(Wire& wire, const Device& device, const Spec& spec);

// One side of messages within a kernel.
struct KernelPair {
  const Device& device;
  Link& link;
  uint64_t findings;  // address of a Findings in device memory
  std::function<void(bool checked, uint32_t rounds, bool corrupt)> launch;
};
// A sample is the mean over one launch; there are ten. One more launch, of kernels that check each
// message, transfers as many messages, or 1 GiB.
Outcome time_kernels(const Spec& spec, const KernelPair& pair);

// Describes the wire's messages to a kernel. `findings`: device memory for a Findings.
KernelPayload kernel_payload(const Spec& spec, SlotWire& wire, const void* findings);
// Measures the kernels `name` and `name`_checked, with a group of spec.threads, or one group per
// direction.
template <typename Args>
Outcome kernel_row(const Spec& spec, SlotWire& wire, const Device& device, const Kernels& kernels,
                   const std::string& name, Args args) {
  const cuda::Function plain = kernels.find(name.c_str());
  const cuda::Function checked = kernels.find((name + "_checked").c_str());
  const auto blocks = static_cast<unsigned>((spec.threads > kMostThreads ? kClusterBlocks : 1) *
                                            (spec.both ? 2 : 1));
  const auto threads = static_cast<unsigned>(std::min<size_t>(spec.threads, kMostThreads));
  args.payload.both = spec.both ? 1 : 0;
  auto launch = [&](bool check_bytes, uint32_t rounds, bool corrupt) {
    args.payload.rounds = rounds;
    args.payload.corrupt = corrupt;
    kernels.launch(check_bytes ? checked : plain, blocks, threads, args);
  };
  return time_kernels(spec, {device, wire.link(), args.payload.findings, launch});
}

}  // namespace bench
