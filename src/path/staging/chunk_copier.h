// SPDX-License-Identifier: Apache-2.0
//
// ChunkCopier: copies chunks between the memory of a request and bounce buffers: by the engine,
// piece by piece, or where many small blocks are gathered or scattered, by the kernel of the
// batches.
//
// Threading: prepare() and recycle() under the link's lock, copy() without it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "link/link.h"
#include "path/staging/staging_transfer.h"

namespace oh {

class ChunkCopier {
 public:
  using Chunk = StagingTransfer::Chunk;
  explicit ChunkCopier(const Link& link) : link_(link) {}

  // Before copy(): a list for the chunk's blocks, where one is idle and a kernel copies them.
  void prepare(const Request& request, Chunk& chunk);
  // Enqueues the copies of a chunk, and the write of its value behind them.
  Status copy(StagingTransfer& transfer, Chunk& chunk);
  // The chunk is not used any more.
  void recycle(Chunk& chunk);

 private:
  static constexpr int kMostLists = 16;  // chunks that get none are copied by the engine
  bool is_for_kernel(const Request& request) const;
  void make_list(Chunk& chunk);
  static Status launch(const StagingTransfer& transfer, Chunk& chunk);

  const Link& link_;
  std::vector<std::unique_ptr<BatchBuffer>> lists_;  // idle
  // That may still be made; far below 0: none can be. Relaxed: a count, nothing is ordered by it.
  std::atomic<int> lists_left_{kMostLists};
};

}  // namespace oh
