// SPDX-License-Identifier: Apache-2.0
//
// What is enqueued on a GPU's stream and timed there: the benchmark's own kernels, points in time,
// work that is replayed as a graph, and the loop over them, which is the same for onehop, NCCL and
// floors.
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
  // GpuError: the build has none, or not for this device.
  explicit Kernels(const Device& device);
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  ~Kernels();

  cuda::Function find(const char* name) const;
  // On the device's stream.
  template <typename Args>
  void launch(cuda::Function kernel, unsigned blocks, unsigned threads, Args args) const {
    void* arguments[] = {&args};
    BENCH_CUDA(device_.driver(), launch_kernel, kernel, blocks, 1, 1, threads, 1, 1, 0,
               device_.stream(), arguments, nullptr);
  }
  // The same; where the GPU can (sm_90, CUDA 12.3), the kernel begins while the one before it ends.
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

// Points in the order of the device's stream, and the time between them.
class Marks {
 public:
  Marks(const Device& device, size_t count);
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;
  ~Marks();

  // Sets the next one.
  void set();
  // Microseconds from one to another, once the stream is through with them.
  double between(size_t from, size_t to) const;
  size_t count() const { return events_.size(); }

 private:
  const Device& device_;
  std::vector<cuda::Event> events_;
  size_t next_ = 0;
};

// Work for the device's stream, so many times over: enqueued anew each time, or as a graph of it.
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

// What is timed on a stream. begin and end take and check new bytes while nothing is under way.
struct StreamRow {
  const Device& device;
  Work::Body round;                      // enqueues one operation
  std::function<void(bool last)> begin;  // `last`: the timed ones come
  std::function<void()> end;
  uint64_t whole;  // operations with new bytes, twice before the timed ones: at first, and as timed
  size_t warmup;   // operations
  size_t each;     // operations of a sample
  size_t samples;
  bool graph = false;
  Work::Body checked{};  // what is enqueued when bytes are checked; else `round`
  Work::Body confirm{};  // behind the timed ones
};
// Microseconds of each sample, and at last from the first one until the confirmation.
std::vector<double> time_on_stream(const StreamRow& row);

// A sample of latency is the mean of up to 50 round trips, halved, one of patterns that of as many
// exchanges; one of bandwidth that of a tenth of the messages. Timed iterations are whole samples.
//
// As many, or 256 MiB of them, are enqueued behind those, with bytes of their own each that are all
// checked. Copies between them bring and keep the bytes. Of batches that get, whose target takes no
// part, 8 come one by one in their place, or one of more than 4 MiB.
Outcome stream_row(Wire& wire, const Device& device, const Spec& spec);

// One of the two sides of messages within a kernel.
struct KernelPair {
  const Device& device;
  Link& link;
  uint64_t findings;  // of kernels.h, in memory of the device
  std::function<void(bool checked, uint32_t rounds, bool corrupt)> launch;
};
// A sample is the mean of a launch, of which there are ten. One more, of kernels that check each
// message, has as many, or 1 GiB of them.
Outcome time_kernels(const Spec& spec, const KernelPair& pair);

// What a kernel is told of the wire's messages. `findings`: memory of the device for them.
KernelPayload kernel_payload(const Spec& spec, SlotWire& wire, const void* findings);
// The row of the kernels `name` and `name`_checked, by a group of spec.threads, or one for each
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
