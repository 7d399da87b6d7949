// SPDX-License-Identifier: Apache-2.0
//
// Memory of every kind that a GPU's user has, for benchmark and doctor.
//
// Threading: a block belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu_driver.h"

namespace bench {

enum class Memory {
  kHost,         // the process's own, or of oh_shared_alloc
  kPinned,       // cudaMallocHost
  kCuda,         // cudaMalloc
  kCudaVmm,      // several VMM chunks in one range of addresses, as PyTorch's expandable segments
  kCudaPool,     // cudaMallocAsync from a pool that can be exported
  kCudaAsync,    // cudaMallocAsync from the device's default pool
  kCudaManaged,  // cudaMallocManaged
};

// One allocation. Throws GpuError.
class GpuBlock {
 public:
  GpuBlock(const Device& device, Memory kind, size_t size);
  GpuBlock(const GpuBlock&) = delete;
  GpuBlock& operator=(const GpuBlock&) = delete;
  ~GpuBlock();

  uint8_t* data() const { return reinterpret_cast<uint8_t*>(address_); }
  size_t size() const { return size_; }

 private:
  void allocate_vmm();
  void allocate_pool();
  void free_vmm();

  const Device& device_;
  const GpuDriver& driver_;
  Memory kind_;
  size_t size_;
  cuda::DevicePtr address_ = 0;
  // VMM
  size_t reserved_ = 0;
  size_t mapped_ = 0;
  std::vector<cuda::AllocationHandle> chunks_;
  // Pool
  cuda::MemoryPool pool_ = nullptr;
};

}  // namespace bench
