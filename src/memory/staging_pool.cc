// SPDX-License-Identifier: Apache-2.0
#include "memory/staging_pool.h"

#include <algorithm>

#include "platform/os/handles.h"

namespace oh {
namespace {
constexpr uint64_t kAtOnce = 4;  // buffers that are made together
constexpr size_t kLow = 2;       // so few left are few
}  // namespace

struct StagingPool::Slab {
  Mapping memory;
  std::shared_ptr<cuda::Pinned> pinned;  // let go of before the memory is unmapped
};

StagingPool::StagingPool(std::shared_ptr<cuda::Gpu> gpu, uint64_t buffer_size, uint32_t most)
    : gpu_(std::move(gpu)), buffer_size_(buffer_size), most_(most) {}

StagingPool::~StagingPool() = default;

// Until so many are free.
Status StagingPool::grow(size_t least) {
  MutexLock growth(growth_mutex_);
  uint64_t more;
  {
    MutexLock lock(mutex_);
    if (free_.size() >= least) return {};
    more = std::min(2 * uint64_t{most_} - stats_.buffers, kAtOnce);
  }
  if (more == 0) return {};
  auto slab = std::make_unique<Slab>();
  OH_ASSIGN_OR_RETURN(slab->memory, Mapping::anonymous(more * buffer_size_));
  OH_ASSIGN_OR_RETURN(slab->pinned,
                      cuda::Pinned::of(gpu_, slab->memory.data(), slab->memory.size()));
  {
    MutexLock lock(mutex_);
    for (uint64_t i = more; i-- > 0;) free_.push_back(slab->memory.data() + i * buffer_size_);
    stats_.buffers += more;
    made_.push_back(slab.get());
  }
  slabs_.push_back(std::move(slab));
  return {};
}

Result<uint8_t*> StagingPool::take(StagingDirection direction, const void* who) {
  while (true) {
    {
      MutexLock lock(mutex_);
      Side& side = sides_[static_cast<size_t>(direction)];
      bool next = side.waiting.empty() || side.waiting.front() == who;
      if (side.used == most_ || !next) {
        if (std::find(side.waiting.begin(), side.waiting.end(), who) == side.waiting.end()) {
          side.waiting.push_back(who);
          ++stats_.shortages;
        }
        return nullptr;
      }
      if (!free_.empty()) {
        uint8_t* buffer = free_.back();
        free_.pop_back();
        if (!side.waiting.empty()) side.waiting.pop_front();
        ++side.used;
        stats_.peak = std::max<uint64_t>(stats_.peak, sides_[0].used + sides_[1].used);
        return buffer;
      }
    }
    OH_RETURN_IF_ERROR(grow(1));
  }
}

void StagingPool::give(StagingDirection direction, uint8_t* buffer) {
  MutexLock lock(mutex_);
  --sides_[static_cast<size_t>(direction)].used;
  free_.push_back(buffer);
}

cuda::DevicePtr StagingPool::on_device(const uint8_t* buffer) const {
  MutexLock lock(mutex_);
  for (const Slab* slab : made_) {
    const uint8_t* begin = slab->memory.data();
    if (buffer >= begin && buffer < begin + slab->memory.size())
      return slab->pinned->device(buffer);
  }
  return 0;
}

void StagingPool::forget(StagingDirection direction, const void* who) {
  MutexLock lock(mutex_);
  std::erase(sides_[static_cast<size_t>(direction)].waiting, who);
}

void StagingPool::grow_if_low() {
  {
    MutexLock lock(mutex_);
    if (free_.size() >= kLow || stats_.buffers == 2 * uint64_t{most_}) return;
  }
  // Where it fails it is tried again, and told, when there is none left.
  (void)grow(kLow).ok();
}

StagingStats StagingPool::stats() const {
  MutexLock lock(mutex_);
  StagingStats now = stats_;
  now.in_use = sides_[0].used + sides_[1].used;
  return now;
}

}  // namespace oh
