// SPDX-License-Identifier: Apache-2.0
//
// The Gpu's kernels: loaded and launched through the driver, so that the library needs no CUDA
// runtime.
#include "platform/cuda/gpu.h"

namespace oh::cuda {

Status Gpu::load_kernels(ByteView image, const char* batch, const char* worker) {
  auto missing = [&] { return (batch && !batch_kernel()) || (worker && !worker_kernel()); };
  if (!missing()) return {};
  if (image.size() == 0) return error(OH_ERR_NOT_VIABLE, "this build of onehop has no kernels");
  MutexLock lock(kernels_mutex_);
  if (!missing()) return {};
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  if (!module_) {
    Code code = driver_->module_load(&module_, image.data());
    if (code != kSuccess) {
      module_ = nullptr;
      return failure(code, symbol::module_load, strf("%zu bytes", image.size()));
    }
    objects_.fetch_add(1, std::memory_order_relaxed);
  }
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

}  // namespace oh::cuda
