// SPDX-License-Identifier: Apache-2.0
//
// StagingPool: bounce buffers in pinned host memory for device memory on links without shared
// memory. Each direction has its own queue, so outbound transfers never wait for inbound ones to
// release a buffer.
//
// Threading: any thread. take() and grow_if_low() may call the driver; the others do not block.
#pragma once

#include <memory>

#include "memory/buffer_pool.h"
#include "platform/cuda/gpu.h"

namespace oh {

enum class StagingDirection : uint8_t { kOut = 0, kIn = 1 };

class StagingPool {
 public:
  // `most`: buffers per direction.
  StagingPool(std::shared_ptr<cuda::Gpu> gpu, uint64_t buffer_size, uint32_t most);

  uint64_t buffer_size() const { return pool_.buffer_size(); }
  // As BufferPool::take(). The buffers are page-aligned.
  Result<PooledBuffer> take(StagingDirection direction, const void* who) {
    return pool_.take(static_cast<size_t>(direction), who);
  }
  void give(StagingDirection direction, PooledBuffer buffer) {
    pool_.give(static_cast<size_t>(direction), buffer);
  }
  // The device address of a buffer.
  static cuda::DevicePtr on_device(const PooledBuffer& buffer);
  void forget(StagingDirection direction, const void* who) {
    pool_.forget(static_cast<size_t>(direction), who);
  }
  void grow_if_low() { pool_.grow_if_low(); }
  PoolStats stats() const { return pool_.stats(); }

 private:
  BufferPool pool_;
};

}  // namespace oh
