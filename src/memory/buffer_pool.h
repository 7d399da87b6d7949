// SPDX-License-Identifier: Apache-2.0
//
// BufferPool: equal-sized buffers that transfers share. The pool allocates a few at a time on
// demand. Each line (queue) has its own limit, so one line never waits for another to release a
// buffer. Requests of a line that find no buffer are served first come, first served. The owner
// supplies the memory.
//
// Threading: any thread. take() and grow_if_low() may allocate; the others do not block.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/sync.h"

namespace oh {

// A slab: memory of several buffers. Destroyed with the pool.
class BufferMemory {
 public:
  virtual ~BufferMemory() = default;
  uint8_t* data = nullptr;
  void* registration = nullptr;  // the owner's handle of the memory, as pinned or registered
};
using MakeMemory = std::function<Result<std::unique_ptr<BufferMemory>>(size_t bytes)>;

struct PooledBuffer {
  uint8_t* data = nullptr;
  void* registration = nullptr;  // of its slab
};

struct PoolStats {
  uint64_t size = 0;     // bytes per buffer
  uint64_t limit = 0;    // most buffers that may be allocated
  uint64_t buffers = 0;  // allocated
  uint64_t in_use = 0;
  uint64_t peak = 0;       // highest in_use
  uint64_t shortages = 0;  // requests that had to wait
};

class BufferPool {
 public:
  // `most`: buffers that each line may use at once.
  BufferPool(MakeMemory make, uint64_t buffer_size, uint32_t most, size_t lines = 1);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  uint64_t buffer_size() const { return buffer_size_; }
  // Takes a buffer for `who`. Null: the line is at its limit, or earlier requests wait; `who` is
  // queued and must call take() again, or forget(). Fails if the memory cannot be allocated.
  Result<PooledBuffer> take(size_t line, const void* who);
  void give(size_t line, PooledBuffer buffer);
  // Removes `who` from the queue.
  void forget(size_t line, const void* who);
  // Whether a request waits in the line and take() would serve the first one now.
  bool is_next_served(size_t line) const;
  // Allocates ahead when few buffers are free, so that the next take() need not.
  void grow_if_low();
  PoolStats stats() const;

 private:
  struct Line {
    uint32_t used = 0;
    std::deque<const void*> waiting;
  };
  Status grow(size_t least);
  uint64_t limit() const { return lines_.size() * uint64_t{most_}; }

  const MakeMemory make_;
  const uint64_t buffer_size_;
  const uint32_t most_;
  Mutex growth_mutex_;  // held while memory is allocated; taken before mutex_
  std::vector<std::unique_ptr<BufferMemory>> slabs_ OH_GUARDED_BY(growth_mutex_);
  mutable Mutex mutex_;
  std::vector<PooledBuffer> free_ OH_GUARDED_BY(mutex_);
  std::vector<Line> lines_;  // the elements: OH_GUARDED_BY(mutex_)
  PoolStats stats_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
