// SPDX-License-Identifier: Apache-2.0
//
// ChunkCopier: copies chunks between a request's memory and bounce buffers: by the engine, piece by
// piece, or by the batch kernel where it gathers or scatters many small blocks.
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

  // Called before copy(): gives the chunk an idle list for its blocks, if a kernel copies them.
  void prepare(const Request& request, Chunk& chunk);
  // Enqueues the copies of a chunk, followed by the write of its value.
  Status copy(StagingTransfer& transfer, Chunk& chunk);
  // Takes back the list of a chunk that is no longer used.
  void recycle(Chunk& chunk);

 private:
  static constexpr int kMostLists = 16;  // chunks that get none are copied by the engine
  bool is_for_kernel(const Request& request) const;
  void make_list(Chunk& chunk);
  static Status launch(const StagingTransfer& transfer, Chunk& chunk);

  const Link& link_;
  std::vector<std::unique_ptr<BatchBuffer>> lists_;  // idle
  // Lists that may still be created; far below 0 once a creation has failed. Relaxed: a plain count
  // that orders nothing.
  std::atomic<int> lists_left_{kMostLists};
};

}  // namespace oh
