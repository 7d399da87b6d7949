// SPDX-License-Identifier: Apache-2.0
//
// The Gpu's kernels: loaded and launched through the driver, so that the library needs no CUDA
// runtime.
#include "platform/cuda/gpu.h"

namespace oh::cuda {

Status Gpu::load_kernels(ByteView image, const char* batch, const char* worker) {
  auto missing = [&] { return (batch && !batch_kernel()) || (worker && !worker_kernel()); };
  if (!missing()) return {};
  MutexLock lock(kernels_mutex_);
  if (!missing()) return {};
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  OH_RETURN_IF_ERROR(load_module(image));
  for (auto [name, kernel] : {std::pair(batch, &batch_kernel_), {worker, &worker_kernel_}}) {
    if (!name) continue;
    Function found = nullptr;
    Code code = driver_->module_function(&found, module_, name);
    if (code != kSuccess) return failure(code, symbol::module_function, name);
    kernel->store(found, std::memory_order_release);
  }
  return {};
}

// With the context entered.
Status Gpu::load_module(ByteView image) {
  if (module_) return {};
  if (image.size() == 0) return error(OH_ERR_NOT_VIABLE, "this build of onehop has no kernels");
  Code code = driver_->module_load(&module_, image.data());
  if (code != kSuccess) {
    module_ = nullptr;
    return failure(code, symbol::module_load, strf("%zu bytes", image.size()));
  }
  objects_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

oh::Result<Function> Gpu::kernel(ByteView image, const char* name) {
  MutexLock lock(kernels_mutex_);
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  OH_RETURN_IF_ERROR(load_module(image));
  Function found = nullptr;
  Code code = driver_->module_function(&found, module_, name);
  if (code != kSuccess) return failure(code, symbol::module_function, name);
  return found;
}

// With the context entered.
void Gpu::unload_kernels() {
  MutexLock lock(kernels_mutex_);
  if (module_) driver_->module_unload(module_);
}

Status Gpu::launch(Stream stream, Function kernel, unsigned grid, unsigned threads,
                   void* argument) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  void* arguments[] = {argument};
  Code code =
      driver_->launch_kernel(kernel, grid, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
  if (code == kSuccess) return {};
  return failure(code, symbol::launch_kernel,
                 strf("%u blocks of %u threads, cuda:%d", grid, threads, facts_.ordinal));
}

Status Gpu::launch_remote(Stream stream, Function kernel, const Grid& grid, void* argument) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  LaunchAttribute attributes[3] = {};
  unsigned count = 0;
  auto add = [&](LaunchAttributeId id) -> LaunchAttributeValue& {
    attributes[count].id = id;
    return attributes[count++].value;
  };
  if (clusters()) add(kLaunchMemSyncDomain).mem_sync_domain = kMemSyncDomainRemote;
  if (grid.cluster > 1) add(kLaunchCluster).cluster = {grid.cluster, 1, 1};
  if (grid.early && begins_early())
    add(kLaunchProgrammaticSerialization).programmatic_serialization = 1;
  LaunchConfig config{};
  config.grid_x = grid.blocks;
  config.grid_y = config.grid_z = 1;
  config.block_x = grid.threads;
  config.block_y = config.block_z = 1;
  config.stream = stream;
  config.attributes = attributes;
  config.attribute_count = count;
  void* arguments[] = {argument};
  Code code = driver_->launch_kernel_ex(&config, kernel, arguments, nullptr);
  if (code == kSuccess) return {};
  return failure(
      code, symbol::launch_kernel_ex,
      strf("%u blocks of %u threads, cuda:%d", grid.blocks, grid.threads, facts_.ordinal));
}

// The stream and the event may be the caller's: what fails says nothing of our context.
oh::Result<bool> Gpu::is_capturing(Stream stream) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  int status = kCaptureNone;
  Code code = driver_->stream_is_capturing(stream, &status);
  if (code == kSuccess) return status != kCaptureNone;
  return driver_->failure(code, symbol::stream_is_capturing,
                          strf("stream %p, cuda:%d", static_cast<void*>(stream), facts_.ordinal));
}

std::optional<uint64_t> Gpu::stream_id(Stream stream) const {
  if (!driver_->stream_id) return {};
  Enter enter(*this);  // default streams are of the current context
  uint64_t id = 0;
  if (!enter.status().ok() || driver_->stream_id(stream, &id) != kSuccess) return {};
  return id;
}

Status Gpu::wait_event(Stream stream, Event event) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  OH_CUDA_TRY(*driver_, stream_wait_event, stream, event, 0);
  return {};
}

Status Gpu::record(Event event, Stream stream) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  OH_CUDA_TRY(*driver_, event_record, event, stream);
  return {};
}

oh::Result<Event> Gpu::event_behind_all() {
  if (!driver_->context_record) {
    return error(OH_ERR_NOT_VIABLE, "%s has no %s: install a newer driver",
                 driver_->library.c_str(), symbol::context_record);
  }
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  OH_ASSIGN_OR_RETURN(Event event, take_event());
  Code code = driver_->context_record(context_, event);
  if (code == kSuccess) return event;
  give_event(event);
  return failure(code, symbol::context_record, strf("cuda:%d", facts_.ordinal));
}

Status Gpu::zero(Stream stream, DevicePtr memory, uint64_t size) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  Code code = driver_->memset8_async(memory, 0, size, stream);
  if (code == kSuccess) return {};
  return failure(
      code, symbol::memset8_async,
      strf("%llu bytes, cuda:%d", static_cast<unsigned long long>(size), facts_.ordinal));
}

}  // namespace oh::cuda
