// SPDX-License-Identifier: Apache-2.0
//
// The benchmark's own kernels on a device, and what its loops need of streams: points in time, and
// work that is replayed as a graph.
//
// Threading: each belongs to one thread, and its device's context is current there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu_driver.h"

namespace bench {

// Why the kernels cannot run on the device; empty: they can.
std::string why_no_kernels(const Device& device);

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

 private:
  const Device& device_;
  cuda::Module module_ = nullptr;
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

}  // namespace bench
