// SPDX-License-Identifier: Apache-2.0
//
// BufferPool: buffers of one size that transfers share. They are made a few at a time as they are
// needed, up to a limit for each line (queue): one line never waits for another to release a
// buffer. A request that finds none gets the next free one, first come, first served. The owner
// supplies the memory.
//
// Threading: any thread. take() and grow_if_low() may make memory, the others do not wait.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/sync.h"

namespace oh {

// Memory of several buffers. Destroyed with the pool.
class BufferMemory {
 public:
  virtual ~BufferMemory() = default;
  uint8_t* data = nullptr;
  void* registration = nullptr;  // what its owner needs beside the address
};
using MakeMemory = std::function<Result<std::unique_ptr<BufferMemory>>(size_t bytes)>;

struct PooledBuffer {
  uint8_t* data = nullptr;
  void* registration = nullptr;  // of its memory
};

struct PoolStats {
  uint64_t size = 0;       // bytes of a buffer
  uint64_t limit = 0;      // buffers that may be made
  uint64_t buffers = 0;    // made
  uint64_t in_use = 0;     // now
  uint64_t peak = 0;       // most that were in use at once
  uint64_t shortages = 0;  // times that a request had to wait for one
};

class BufferPool {
 public:
  // `most`: buffers of each line.
  BufferPool(MakeMemory make, uint64_t buffer_size, uint32_t most, size_t lines = 1);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  uint64_t buffer_size() const { return buffer_size_; }
  // A buffer for `who`; null: all of the line are in use, or others have asked before: ask again,
  // or forget(). Fails where the memory cannot be made.
  Result<PooledBuffer> take(size_t line, const void* who);
  void give(size_t line, PooledBuffer buffer);
  // `who` waits for none any more.
  void forget(size_t line, const void* who);
  // Whether a request waits, and there is a buffer for the next in line.
  bool is_next_served(size_t line) const;
  // Makes more where few are left, so that the next one need not wait for it.
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
  Mutex growth_mutex_;  // held while memory is made; taken first
  std::vector<std::unique_ptr<BufferMemory>> slabs_ OH_GUARDED_BY(growth_mutex_);
  mutable Mutex mutex_;
  std::vector<PooledBuffer> free_ OH_GUARDED_BY(mutex_);
  std::vector<Line> lines_;  // what is in them: OH_GUARDED_BY(mutex_)
  PoolStats stats_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
