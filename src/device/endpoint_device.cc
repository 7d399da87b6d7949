// SPDX-License-Identifier: Apache-2.0
#include "device/endpoint_device.h"

#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "device/stream_gate.h"
#include "kernels/batch.h"
#include "kernels/image.h"
#include "kernels/worker.h"
#include "platform/cuda/topology.h"

namespace oh {
namespace {

// Interval of the checks whether exported memory still exists: a free is not observable.
constexpr int64_t kSweepTime = 100 * kMillisecond;

// Endpoints of this process that are on a GPU.
std::atomic<uint32_t> g_gpu_endpoints{0};

}  // namespace

Status EndpointDevice::open(const Config& config, std::shared_ptr<Node> node,
                            const std::string& device, std::weak_ptr<void> holder) {
  holder_ = std::move(holder);
  node_ = std::move(node);
  if (device.empty()) return {};
  OH_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::open(config.cuda_library));
  OH_ASSIGN_OR_RETURN(gpu_, cuda::Gpu::open(*driver, device));
  bool worker = config.worker == "on" || config.worker == "1";
  bool batches = config.batch_kernel == "auto";
  Status kernels = gpu_->kernels().load(
      kernel_image(), {.batch = batches ? kernels::kBatchKernel : nullptr,
                       .stream_batch = batches ? kernels::kStreamBatchKernel : nullptr,
                       .stream_few_blocks = batches ? kernels::kStreamFewBlocksKernel : nullptr,
                       .worker = worker ? kernels::kWorkerKernel : nullptr});
  if (!kernels.ok()) {
    OH_LOG(kInfo, "batches between devices go block by block: %s", kernels.text().c_str());
  }
  if (worker) start_worker(config);
  staging_ = std::make_shared<StagingPool>(gpu_, config.staging_buffer,
                                           static_cast<uint32_t>(config.staging_buffers));
  g_gpu_endpoints.fetch_add(1);
  if (config.numa == "auto") numa_node_ = gpu_->facts().numa;
  if (numa_node() >= 0) node_->add_numa(numa_node());
  sweep_exports();
  return {};
}

void EndpointDevice::start_worker(const Config& config) {
  // With CUDA_LAUNCH_BLOCKING a launch returns only when the kernel has ended, so no thread could
  // give it a command.
  const char* blocking = getenv("CUDA_LAUNCH_BLOCKING");
  bool blocks = blocking && blocking[0] != '\0' && strcmp(blocking, "0") != 0;
  // Without MPS, processes share the GPU by time slices: a kernel that polls takes the time of the
  // others.
  int sharing = gpu_->facts().mps ? 1
                                  : cuda::compute_processes(config.nvml_library,
                                                            cuda::uuid_text(gpu_->facts().uuid));
  Result<std::shared_ptr<Worker>> worker = Worker::of(gpu_);
  if (worker.ok() && !blocks && sharing <= 1) {
    worker_ = std::move(*worker);
    return;
  }
  OH_LOG(kWarn, "ONEHOP_WORKER has no effect on %s: %s", gpu_->facts().name.c_str(),
         blocks        ? "CUDA_LAUNCH_BLOCKING is set"
         : sharing > 1 ? strf("%d processes compute on it without MPS", sharing).c_str()
                       : worker.status().text().c_str());
}

void EndpointDevice::close() {
  if (!gpu_ || closed_.exchange(true)) return;
  if (numa_node() >= 0) node_->remove_numa(numa_node());
  if (g_gpu_endpoints.fetch_sub(1) == 1) trim();
}

void EndpointDevice::sweep_exports() {
  for (uint32_t number : GpuExports::instance().sweep(gpu_->driver())) node_->memory_gone(number);
  GpuImports::instance().close_unused();
  StreamGates::instance().reap();
  StreamGates::instance().close_unused();
  node_->watcher().post_at(now_ns() + kSweepTime, [this, weak = holder_] {
    std::shared_ptr<void> held = weak.lock();
    if (held && !closed_.load()) sweep_exports();
  });
}

void EndpointDevice::retire_exports(const void* data, uint64_t length) {
  if (!gpu_) return;
  for (uint32_t number : GpuExports::instance().retire(data, length)) node_->memory_gone(number);
}

}  // namespace oh
