// SPDX-License-Identifier: Apache-2.0
#include "gpu_kernels.h"

#if defined(OH_BENCH_KERNELS)
// Laid into the module as the library's image is into the library.
extern "C" const uint8_t oh_kernel_image_begin[];
#endif

namespace bench {
namespace {

const void* image() {
#if defined(OH_BENCH_KERNELS)
  return oh_kernel_image_begin;
#else
  return nullptr;
#endif
}

}  // namespace

std::string why_no_kernels(const Device& device) {
  try {
    Current current(device);
    Kernels(device).find("bench_put");
  } catch (const GpuError& failure) {
    return failure.what();
  }
  return "";
}

Kernels::Kernels(const Device& device) : device_(device) {
  if (!image()) throw GpuError("this build has no kernels of the benchmark: ONEHOP_CUDA is off");
  BENCH_CUDA(device.driver(), module_load, &module_, image());
}

Kernels::~Kernels() { device_.driver().module_unload(module_); }

cuda::Function Kernels::find(const char* name) const {
  cuda::Function found = nullptr;
  cuda::Code code = device_.driver().module_function(&found, module_, name);
  device_.driver().check(code, (std::string("module_function of ") + name).c_str());
  return found;
}

Marks::Marks(const Device& device, size_t count) : device_(device), events_(count) {
  for (cuda::Event& event : events_) BENCH_CUDA(device.driver(), event_create, &event, 0);
}

Marks::~Marks() {
  for (cuda::Event event : events_) device_.driver().event_destroy(event);
}

void Marks::set() {
  BENCH_CUDA(device_.driver(), event_record, events_.at(next_++), device_.stream());
}

double Marks::between(size_t from, size_t to) const {
  float ms = 0;
  BENCH_CUDA(device_.driver(), event_elapsed, &ms, events_.at(from), events_.at(to));
  return static_cast<double>(ms) * 1e3;
}

Work::Work(const Device& device, Body body, size_t times, bool as_graph)
    : device_(device), body_(std::move(body)), times_(times) {
  if (as_graph) capture();
}

Work::~Work() {
  if (ready_) device_.driver().graph_exec_destroy(ready_);
  if (graph_) device_.driver().graph_destroy(graph_);
}

void Work::capture() {
  const GpuDriver& driver = device_.driver();
  BENCH_CUDA(driver, capture_begin, device_.stream(), cuda::kCaptureThreadLocal);
  try {
    for (size_t i = 0; i < times_; ++i) body_();
  } catch (...) {
    driver.capture_end(device_.stream(), &graph_);
    if (graph_) driver.graph_destroy(graph_);
    throw;
  }
  BENCH_CUDA(driver, capture_end, device_.stream(), &graph_);
  BENCH_CUDA(driver, graph_instantiate, &ready_, graph_, 0);
}

void Work::enqueue() const {
  if (ready_) {
    BENCH_CUDA(device_.driver(), graph_launch, ready_, device_.stream());
    return;
  }
  for (size_t i = 0; i < times_; ++i) body_();
}

}  // namespace bench
