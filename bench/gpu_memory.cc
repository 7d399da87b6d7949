// SPDX-License-Identifier: Apache-2.0
#include "gpu_memory.h"

namespace bench {
namespace {

// As PyTorch cuts its expandable segments.
constexpr size_t kChunk = size_t{20} << 20;
constexpr unsigned kAttachGlobal = 1;

}  // namespace

GpuBlock::GpuBlock(const Device& device, Memory kind, size_t size)
    : device_(device), driver_(device.driver()), kind_(kind), size_(size) {
  Current current(device);
  void* host = nullptr;
  switch (kind) {
    case Memory::kHost:
      throw GpuError("host memory is no memory of the driver");
    case Memory::kPinned:
      BENCH_CUDA(driver_, host_alloc, &host, size, cuda::kHostRegisterPortable);
      address_ = address_of(host);
      break;
    case Memory::kCuda:
      BENCH_CUDA(driver_, memory_alloc, &address_, size);
      break;
    case Memory::kCudaVmm:
      allocate_vmm();
      break;
    case Memory::kCudaPool:
      allocate_pool();
      break;
    case Memory::kCudaAsync:
      BENCH_CUDA(driver_, alloc_async, &address_, size, device.stream());
      device.synchronize();
      break;
    case Memory::kCudaManaged:
      BENCH_CUDA(driver_, memory_alloc_managed, &address_, size, kAttachGlobal);
      break;
  }
}

GpuBlock::~GpuBlock() {
  Current current(device_);
  switch (kind_) {
    case Memory::kHost:
      break;
    case Memory::kPinned:
      driver_.host_free(data());
      break;
    case Memory::kCuda:
    case Memory::kCudaManaged:
      driver_.memory_free(address_);
      break;
    case Memory::kCudaVmm:
      free_vmm();
      break;
    case Memory::kCudaPool:
    case Memory::kCudaAsync:
      driver_.free_async(address_, device_.stream());
      driver_.stream_synchronize(device_.stream());
      if (pool_) driver_.pool_destroy(pool_);
      break;
  }
}

void GpuBlock::allocate_vmm() {
  cuda::AllocationProp prop{};
  prop.type = cuda::kAllocationPinned;
  prop.requested_handle_types = cuda::kHandleTypePosixFd;
  prop.location = {cuda::kLocationDevice, device_.ordinal()};
  try {
    size_t bytes = (size_ + kChunk - 1) / kChunk * kChunk;
    BENCH_CUDA(driver_, vmm_reserve, &address_, bytes, 0, 0, 0);
    reserved_ = bytes;
    for (; mapped_ < bytes; mapped_ += kChunk) {
      cuda::AllocationHandle chunk = 0;
      BENCH_CUDA(driver_, vmm_create, &chunk, kChunk, &prop, 0);
      chunks_.push_back(chunk);
      BENCH_CUDA(driver_, vmm_map, address_ + mapped_, kChunk, 0, chunk, 0);
    }
    cuda::AccessDesc access{prop.location, cuda::kAccessReadWrite};
    BENCH_CUDA(driver_, vmm_set_access, address_, bytes, &access, 1);
  } catch (const GpuError&) {
    free_vmm();
    throw;
  }
}

void GpuBlock::free_vmm() {
  for (size_t at = 0; at < mapped_; at += kChunk) driver_.vmm_unmap(address_ + at, kChunk);
  for (cuda::AllocationHandle chunk : chunks_) driver_.vmm_release(chunk);
  if (reserved_ > 0) driver_.vmm_unreserve(address_, reserved_);
}

void GpuBlock::allocate_pool() {
  cuda::PoolProps props{};
  props.type = cuda::kAllocationPinned;
  props.handle_types = cuda::kHandleTypePosixFd;
  props.location = {cuda::kLocationDevice, device_.ordinal()};
  BENCH_CUDA(driver_, pool_create, &pool_, &props);
  try {
    BENCH_CUDA(driver_, alloc_from_pool_async, &address_, size_, pool_, device_.stream());
    device_.synchronize();
  } catch (const GpuError&) {
    driver_.pool_destroy(pool_);
    throw;
  }
}

}  // namespace bench
