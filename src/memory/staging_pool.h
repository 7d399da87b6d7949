// SPDX-License-Identifier: Apache-2.0
//
// StagingPool: buffers of one size in pinned host memory, through which device memory goes to and
// comes from links without shared memory. They are made a few at a time as they are needed, up to a
// limit for each direction: what goes out never waits for what comes in to let go of a buffer. Who
// finds none has the next one that is free, in the order of asking.
//
// Threading: any thread. take() and grow_if_low() may call the driver, the others do not wait.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "platform/cuda/gpu.h"

namespace oh {

enum class StagingDirection : uint8_t { kOut = 0, kIn = 1 };

struct StagingStats {
  uint64_t buffers = 0;    // made
  uint64_t in_use = 0;     // now
  uint64_t peak = 0;       // most that were in use at once
  uint64_t shortages = 0;  // times that somebody had to wait for one
};

class StagingPool {
 public:
  // `most`: buffers of each direction.
  StagingPool(std::shared_ptr<cuda::Gpu> gpu, uint64_t buffer_size, uint32_t most);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  uint64_t buffer_size() const { return buffer_size_; }
  // A buffer for `who`, page-aligned; null: all of the direction are in use, or others have asked
  // before: ask again, or forget(). Fails where memory or the driver does.
  Result<uint8_t*> take(StagingDirection direction, const void* who);
  void give(StagingDirection direction, uint8_t* buffer);
  // The device's address of one.
  cuda::DevicePtr on_device(const uint8_t* buffer) const;
  // He waits for none any more.
  void forget(StagingDirection direction, const void* who);
  // Makes more where few are left, so that the next one need not wait for it.
  void grow_if_low();
  StagingStats stats() const;

 private:
  struct Slab;
  struct Side {
    uint32_t used = 0;
    std::deque<const void*> waiting;
  };
  Status grow(size_t least);

  std::shared_ptr<cuda::Gpu> gpu_;
  const uint64_t buffer_size_;
  const uint32_t most_;
  Mutex growth_mutex_;  // held while the driver makes some; taken first
  std::vector<std::unique_ptr<Slab>> slabs_ OH_GUARDED_BY(growth_mutex_);
  mutable Mutex mutex_;
  std::vector<uint8_t*> free_ OH_GUARDED_BY(mutex_);
  std::vector<const Slab*> made_ OH_GUARDED_BY(mutex_);  // the same slabs
  std::array<Side, 2> sides_ OH_GUARDED_BY(mutex_);
  StagingStats stats_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
