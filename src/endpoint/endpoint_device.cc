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
  Status kernels = gpu_->load_kernels(kernel_image(), batches ? kernels::kBatchKernel : nullptr,
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
  // Then a launch returns when the kernel has left, and nobody could give it anything.
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
  std::vector<std::shared_ptr<void>> kept;  // without the lock
  {
    MutexLock lock(kept_mutex_);
    kept.swap(kept_);
  }
  kept.clear();
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

Status Endpoint::without_device() {
  return error(OH_ERR_INVALID,
               "the memory is a device's, but the endpoint is for host memory: create the endpoint "
               "with a device");
}

// What to wait for. With `ask`, nothing if that is done already: whoever leaves the wait to the
// engine saves the question.
Result<After> Endpoint::after_of(const AfterOption& option, bool ask) {
  if (option.kind == AfterOption::Kind::kNothing) return After();
  if (!gpu_) {
    return error(
        OH_ERR_INVALID,
        "an operation of an endpoint for host memory cannot wait for a GPU's stream or event: "
        "create the endpoint with a device");
  }
  if (option.kind == AfterOption::Kind::kStream) {
    OH_ASSIGN_OR_RETURN(cuda::Event event,
                        gpu_->event_behind(static_cast<cuda::Stream>(option.handle), ask));
    return After(gpu_, event, /*owned=*/true);
  }
  auto event = static_cast<cuda::Event>(option.handle);
  bool complete = false;
  if (ask) {
    OH_ASSIGN_OR_RETURN(complete, gpu_->is_complete(event));
  }
  return complete ? After() : After(gpu_, event, /*owned=*/false);
}

Status Endpoint::prepare_memory(Request* request, const AfterOption& option) {
  Status status = find_memory(request, option);
  if (status.code() == OH_ERR_DEVICE) gpu_->ask_for_loss();
  return status;
}

Status Endpoint::prepare_local(const void* data, uint64_t size, const AfterOption& option,
                               LocalMemory* local) {
  Status status = find_local(data, size, option, local);
  if (status.code() == OH_ERR_DEVICE) gpu_->ask_for_loss();
  return status;
}

Status Endpoint::find_memory(Request* request, const AfterOption& option) {
  if (!gpu_ && option.on_device) return without_device();
  if (!gpu_ && option.kind == AfterOption::Kind::kNothing) return {};
  // A receive is offered only once it is ready; a send leaves the wait to its engine. But nobody
  // may be here when the receive of a non-blocking send comes: behind an idle stream it waits for
  // nothing, where an event would take a while to be complete.
  // Nor does a worker wait, which is so much faster that it is worth the question.
  bool for_worker = worker_ && request->size <= Worker::kLongest;
  bool engine_waits = request->kind == OpKind::kSend && !for_worker &&
                      (request->attended || option.kind == AfterOption::Kind::kEvent);
  OH_ASSIGN_OR_RETURN(After after, after_of(option, /*ask=*/!engine_waits));
  if (!request->data || request->size == 0) return {};
  // Memory that peers know already takes one question to the driver, all else two and more.
  GpuExports& exports = GpuExports::instance();
  request->device.exported = exports.find_known(gpu_->driver(), request->data, request->size);
  if (!request->device.exported) {
    OH_ASSIGN_OR_RETURN(MemoryFacts memory, classify(gpu_->driver(), request->data, request->size));
    if (memory.placement == Placement::kHost && option.on_device) {
      return error(
          OH_ERR_FAULT,
          "%llu bytes at %p are no device memory any more: they were freed before the call",
          static_cast<unsigned long long>(request->size), static_cast<void*>(request->data));
    }
    if (memory.placement == Placement::kHost) return wait_for_producer(after);
    OH_ASSIGN_OR_RETURN(request->device.exported,
                        exports.find(gpu_->driver(), request->data, request->size));
  }
  OH_RETURN_IF_ERROR(check_device(*request->device.exported));
  request->on_device = true;
  request->device.after = std::move(after);
  return {};
}

// Every engine of the process reaches what cudaMalloc gives; everything else has rights of its own.
Status Endpoint::check_device(const GpuExport& exported) const {
  bool plain = exported.record.chunks.front().kind == ChunkKind::kCudaIpc;
  if (exported.device == gpu_->facts().ordinal || plain) return {};
  return error(
      OH_ERR_NOT_VIABLE,
      "the memory is on cuda:%d and not from cudaMalloc, the endpoint is on cuda:%d: use an "
      "endpoint on the memory's device",
      exported.device, gpu_->facts().ordinal);
}

Status Endpoint::find_local(const void* data, uint64_t size, const AfterOption& option,
                            LocalMemory* local) {
  if (!gpu_ && option.on_device) return without_device();
  if (!gpu_ && option.kind == AfterOption::Kind::kNothing) return {};
  OH_ASSIGN_OR_RETURN(After after, after_of(option, /*ask=*/true));
  if (!data || size == 0) return {};
  local->exported = GpuExports::instance().find_known(gpu_->driver(), data, size);
  if (local->exported) {
    local->on_device = true;
    local->near = local->exported->for_kernels && local->exported->device == gpu_->facts().ordinal;
    local->after = std::move(after);
    return {};
  }
  OH_ASSIGN_OR_RETURN(MemoryFacts memory, classify(gpu_->driver(), data, size));
  if (memory.placement == Placement::kHost && option.on_device) {
    return error(OH_ERR_FAULT,
                 "%llu bytes at %p are no device memory any more: they were freed before the call",
                 static_cast<unsigned long long>(size), data);
  }
  if (memory.placement == Placement::kHost) return wait_for_producer(after);
  local->on_device = true;
  local->near = memory.placement == Placement::kDevice && memory.device == gpu_->facts().ordinal;
  local->after = std::move(after);
  return {};
}

void Endpoint::admit_kernels(const RemoteTarget& target, const void* data, uint64_t size,
                             LocalMemory* local) {
  if (!local->near || !target.on_device || (!gpu_->batch_kernel() && !worker_)) return;
  // It looks at every piece; what it finds is kept, and messages need it, too.
  if (!export_local(data, size, local).ok()) return;
  local->for_kernels = local->exported->for_kernels && kernels_reach(target);
}

// What is mapped for our device stays there while we hold it. Memory of this process may be gone,
// and of another device we reach what cudaMalloc gives.
bool Endpoint::kernels_reach(const RemoteTarget& target) {
  if (target.imported) return true;
  const auto* base = reinterpret_cast<const void*>(target.base);
  Result<MemoryFacts> facts = classify(gpu_->driver(), base, target.length);
  if (!facts.ok() || facts->placement != Placement::kDevice) return false;
  Result<std::shared_ptr<const GpuExport>> there =
      GpuExports::instance().find(gpu_->driver(), base, target.length);
  if (!there.ok()) return false;
  bool plain = (*there)->record.chunks.front().kind == ChunkKind::kCudaIpc;
  return facts->device == gpu_->facts().ordinal || (plain && gpu_->reach(facts->device));
}

Status Endpoint::export_local(const void* data, uint64_t size, LocalMemory* local) {
  if (!local->on_device) return {};
  if (local->exported) return check_device(*local->exported);
  OH_ASSIGN_OR_RETURN(local->exported, GpuExports::instance().find(gpu_->driver(), data, size));
  return check_device(*local->exported);
}

// Host memory is read by the CPU, which knows of no events: what a device still does with it has to
// be done first.
Status Endpoint::wait_for_producer(After& after) {
  Deadline deadline = Deadline::after(config_.timeout_ns());
  while (after.pending()) {
    OH_ASSIGN_OR_RETURN(bool complete, after.is_complete());
    if (complete) return {};
    if (deadline.passed()) {
      return timed_out(deadline.length(),
                       "the work on the stream or event that a transfer of host memory waits for "
                       "(after=) has not ended; ONEHOP_TIMEOUT sets this deadline");
    }
    sched_yield();
  }
  return {};
}

}  // namespace oh
