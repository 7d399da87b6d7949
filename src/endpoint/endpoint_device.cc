// SPDX-License-Identifier: Apache-2.0
//
// An endpoint on a GPU: where a request's memory is, what it waits for, and how exports of device
// memory end.
#include <sched.h>

#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "endpoint/endpoint.h"
#include "kernels/batch.h"
#include "kernels/image.h"
#include "kernels/worker.h"
#include "platform/cuda/topology.h"

namespace oh {
namespace {

// How often exports are asked whether their memory is still there: a free is not observable.
constexpr int64_t kSweepTime = 100 * kMillisecond;

// Endpoints of this process that are on a GPU.
std::atomic<uint32_t> g_gpu_endpoints{0};

}  // namespace

Status Endpoint::open_device(const std::string& device) {
  if (device.empty()) return {};
  OH_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::open(config_.cuda_library));
  OH_ASSIGN_OR_RETURN(gpu_, cuda::Gpu::open(*driver, device));
  bool worker = config_.worker == "on" || config_.worker == "1";
  bool batches = config_.batch_kernel == "auto";
  Status kernels = gpu_->kernels().load(kernel_image(), batches ? kernels::kBatchKernel : nullptr,
                                        worker ? kernels::kWorkerKernel : nullptr);
  if (!kernels.ok()) {
    OH_LOG(kInfo, "batches between devices go block by block: %s", kernels.text().c_str());
  }
  if (worker) start_worker();
  staging_ = std::make_shared<StagingPool>(gpu_, config_.staging_buffer,
                                           static_cast<uint32_t>(config_.staging_buffers));
  g_gpu_endpoints.fetch_add(1);
  if (numa_node() >= 0) node_->add_numa(numa_node());
  sweep_exports();
  return {};
}

void Endpoint::start_worker() {
  // Then a launch returns when the kernel has left, so no thread could give it a command.
  const char* blocking = getenv("CUDA_LAUNCH_BLOCKING");
  bool blocks = blocking && blocking[0] != '\0' && strcmp(blocking, "0") != 0;
  // They take turns, and a kernel that waits takes the others' turn.
  int sharing = gpu_->facts().mps ? 1
                                  : cuda::compute_processes(config_.nvml_library,
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

void Endpoint::close_device() {
  if (!gpu_) return;
  streams_->release();
  if (numa_node() >= 0) node_->remove_numa(numa_node());
  if (g_gpu_endpoints.fetch_sub(1) == 1) trim();
}

void Endpoint::sweep_exports() {
  for (uint32_t number : GpuExports::instance().sweep(gpu_->driver())) node_->memory_gone(number);
  GpuImports::instance().close_unused();
  node_->watcher().post_at(now_ns() + kSweepTime, [weak = weak_from_this()] {
    std::shared_ptr<Endpoint> endpoint = weak.lock();
    if (endpoint && endpoint->is_usable()) endpoint->sweep_exports();
  });
}

void Endpoint::retire_exports(const void* data, uint64_t length) {
  if (!gpu_) return;
  for (uint32_t number : GpuExports::instance().retire(data, length)) node_->memory_gone(number);
}

void Endpoint::on_memory_gone(uint32_t number) {
  for_each_peer([number](Peer& peer) { peer.retire_block(number); });
}

Status Endpoint::prepare_memory(Request* request, const AfterOption& option) {
  if (!gpu_ && !option.given()) return {};
  // A receive is offered only once it is ready; a send leaves the wait to its engine. But no thread
  // may make progress here when the receive of a non-blocking send comes: behind an idle stream it
  // waits for nothing, where an event would take a while to be complete.
  // Nor does a worker wait, which is so much faster that it is worth the question.
  bool for_worker = worker_ && request->size <= Worker::kLongest;
  bool engine_waits = request->kind == OpKind::kSend && !for_worker &&
                      (request->attended || option.kind == AfterOption::Kind::kEvent);
  OH_ASSIGN_OR_RETURN(LocalBuffer buffer, locate(gpu_, request->data, request->size, option,
                                                 {.ask = !engine_waits,
                                                  .exported = true,
                                                  .host = Deadline::after(config_.timeout_ns())}));
  request->on_device = buffer.on_device;
  request->device.after = std::move(buffer.after);
  request->device.exported = std::move(buffer.exported);
  return {};
}

}  // namespace oh
