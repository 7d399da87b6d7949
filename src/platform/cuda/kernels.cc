// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/kernels.h"

#include <algorithm>
#include <utility>

#include "platform/cuda/gpu.h"

namespace oh::cuda {

Status Kernels::load(ByteView image, const Names& names) {
  const std::pair<const char*, std::atomic<Function>*> wanted[] = {
      {names.batch, &batch_},
      {names.stream_few_blocks, &stream_few_blocks_},
      {names.stream_batch, &stream_batch_},  // after the other: callers look at this one alone
      {names.worker, &worker_}};
  auto missing = [&] {
    return std::ranges::any_of(wanted, [](const auto& each) {
      return each.first && !each.second->load(std::memory_order_acquire);
    });
  };
  if (!missing()) return {};
  MutexLock lock(mutex_);
  if (!missing()) return {};
  Enter enter(gpu_);
  OH_RETURN_IF_ERROR(enter.status());
  OH_RETURN_IF_ERROR(load_module(image));
  for (auto [name, kernel] : wanted) {
    if (!name) continue;
    Function found = nullptr;
    Code code = gpu_.driver().module_function(&found, module_, name);
    if (code != kSuccess) return gpu_.failure(code, symbol::module_function, name);
    kernel->store(found, std::memory_order_release);
  }
  return {};
}

// Precondition: the context is entered.
Status Kernels::load_module(ByteView image) {
  if (module_) return {};
  if (image.empty()) return error(OH_ERR_NOT_VIABLE, "this build of onehop has no kernels");
  Code code = gpu_.driver().module_load(&module_, image.data());
  if (code != kSuccess) {
    module_ = nullptr;
    return gpu_.failure(code, symbol::module_load, strf("%zu bytes", image.size()));
  }
  gpu_.count_objects(1);
  return {};
}

oh::Result<Function> Kernels::find(ByteView image, const char* name) {
  MutexLock lock(mutex_);
  Enter enter(gpu_);
  OH_RETURN_IF_ERROR(enter.status());
  OH_RETURN_IF_ERROR(load_module(image));
  Function found = nullptr;
  Code code = gpu_.driver().module_function(&found, module_, name);
  if (code != kSuccess) return gpu_.failure(code, symbol::module_function, name);
  return found;
}

// Precondition: the context is entered.
void Kernels::unload() {
  MutexLock lock(mutex_);
  if (module_) gpu_.driver().module_unload(module_);
}

Status Kernels::launch(Stream stream, Function kernel, unsigned grid, unsigned threads,
                       void* argument) {
  Enter enter(gpu_);
  OH_RETURN_IF_ERROR(enter.status());
  void* arguments[] = {argument};
  Code code =
      gpu_.driver().launch_kernel(kernel, grid, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
  if (code == kSuccess) return {};
  return gpu_.failure(
      code, symbol::launch_kernel,
      strf("%u blocks of %u threads, cuda:%d", grid, threads, gpu_.facts().ordinal));
}

oh::Result<bool> Kernels::runs_clusters(Function kernel) {
  constexpr int kFirst = 90;
  Enter enter(gpu_);
  OH_RETURN_IF_ERROR(enter.status());
  int architecture = 0;
  Code code = gpu_.driver().function_attribute(&architecture, kFunctionVirtualArchitecture, kernel);
  if (code != kSuccess) return gpu_.failure(code, symbol::function_attribute, "the architecture");
  return architecture >= kFirst;
}

bool Kernels::begins_early() const { return gpu_.driver().version >= 12030; }

Status Kernels::launch_remote(Stream stream, Function kernel, const Grid& grid, void* argument) {
  Enter enter(gpu_);
  OH_RETURN_IF_ERROR(enter.status());
  LaunchAttribute attributes[3] = {};
  unsigned count = 0;
  auto add = [&](LaunchAttributeId id) -> LaunchAttributeValue& {
    attributes[count].id = id;
    return attributes[count++].value;
  };
  if (gpu_.facts().major >= 9) add(kLaunchMemSyncDomain).mem_sync_domain = kMemSyncDomainRemote;
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
  Code code = gpu_.driver().launch_kernel_ex(&config, kernel, arguments, nullptr);
  if (code == kSuccess) return {};
  return gpu_.failure(
      code, symbol::launch_kernel_ex,
      strf("%u blocks of %u threads, cuda:%d", grid.blocks, grid.threads, gpu_.facts().ordinal));
}

}  // namespace oh::cuda
