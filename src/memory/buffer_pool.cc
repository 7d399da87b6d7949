// SPDX-License-Identifier: Apache-2.0
#include "memory/buffer_pool.h"

#include <algorithm>

namespace oh {
namespace {
constexpr uint64_t kAtOnce = 4;  // buffers per slab
constexpr size_t kLow = 2;       // with fewer free buffers, grow_if_low() allocates
}  // namespace

BufferPool::BufferPool(MakeMemory make, uint64_t buffer_size, uint32_t most, size_t lines)
    : make_(std::move(make)), buffer_size_(buffer_size), most_(most), lines_(lines) {}

// Allocates a slab, up to the limit, unless `least` buffers are free.
Status BufferPool::grow(size_t least) {
  MutexLock growth(growth_mutex_);
  uint64_t more;
  {
    MutexLock lock(mutex_);
    if (free_.size() >= least) return {};
    more = std::min(limit() - stats_.buffers, kAtOnce);
  }
  if (more == 0) return {};
  OH_ASSIGN_OR_RETURN(std::unique_ptr<BufferMemory> slab, make_(more * buffer_size_));
  {
    MutexLock lock(mutex_);
    for (uint64_t i = more; i-- > 0;) {
      free_.push_back({slab->data + i * buffer_size_, slab->registration});
    }
    stats_.buffers += more;
  }
  slabs_.push_back(std::move(slab));
  return {};
}

Result<PooledBuffer> BufferPool::take(size_t line, const void* who) {
  while (true) {
    {
      MutexLock lock(mutex_);
      Line& mine = lines_[line];
      bool next = mine.waiting.empty() || mine.waiting.front() == who;
      if (mine.used == most_ || !next) {
        if (std::find(mine.waiting.begin(), mine.waiting.end(), who) == mine.waiting.end()) {
          mine.waiting.push_back(who);
          ++stats_.shortages;
        }
        return PooledBuffer{};
      }
      if (!free_.empty()) {
        PooledBuffer buffer = free_.back();
        free_.pop_back();
        if (!mine.waiting.empty()) mine.waiting.pop_front();
        ++mine.used;
        stats_.peak = std::max(stats_.peak, ++stats_.in_use);
        return buffer;
      }
    }
    OH_RETURN_IF_ERROR(grow(1));
  }
}

void BufferPool::give(size_t line, PooledBuffer buffer) {
  MutexLock lock(mutex_);
  --lines_[line].used;
  --stats_.in_use;
  free_.push_back(buffer);
}

void BufferPool::forget(size_t line, const void* who) {
  MutexLock lock(mutex_);
  std::erase(lines_[line].waiting, who);
}

bool BufferPool::is_next_served(size_t line) const {
  MutexLock lock(mutex_);
  return !lines_[line].waiting.empty() && lines_[line].used < most_;
}

void BufferPool::grow_if_low() {
  {
    MutexLock lock(mutex_);
    if (free_.size() >= kLow || stats_.buffers == limit()) return;
  }
  // Ignore a failure: take() tries again and reports it when no buffer is left.
  (void)grow(kLow).ok();
}

PoolStats BufferPool::stats() const {
  MutexLock lock(mutex_);
  PoolStats now = stats_;
  now.size = buffer_size_;
  now.limit = limit();
  return now;
}

}  // namespace oh
