// SPDX-License-Identifier: Apache-2.0
//
// UcxPool: the bounce buffers for frames on their way to UCX; one pool per worker, which all its
// channels share. Each channel uses at most a window of them, so that a peer that receives nothing
// does not exhaust the pool.
//
// Threading: guarded by the worker's lock; stats(): any thread.
#pragma once

#include "memory/buffer_pool.h"
#include "transport/ucx/ucx_context.h"

namespace oh {

// The pool's limits, from the configuration.
struct UcxPoolLimits {
  size_t packed = 60 * 1024;  // bytes of packed frames in one message
  uint32_t buffers = 64;      // buffers of the pool
  uint32_t window = 16;       // buffers that one channel uses at once
  uint32_t depth = 8;         // buffers that one call of progress fills for a channel
};

class UcxPool {
 public:
  // `largest_frame`: minimum size of a buffer.
  UcxPool(const UcxContext& context, const UcxPoolLimits& limits, size_t largest_frame);

  const UcxPoolLimits& limits() const { return limits_; }
  size_t window() const { return window_; }
  // As BufferPool::take(). No data: `who` is queued for the next buffer.
  Result<PooledBuffer> take(const void* who) { return pool_.take(0, who); }
  void give(PooledBuffer buffer) { pool_.give(0, buffer); }
  void forget(const void* who) { pool_.forget(0, who); }
  bool is_next_served() const { return pool_.is_next_served(0); }
  void grow_if_low() { pool_.grow_if_low(); }
  PoolStats stats() const { return pool_.stats(); }

 private:
  const UcxPoolLimits limits_;
  const size_t window_;
  BufferPool pool_;
};

}  // namespace oh
