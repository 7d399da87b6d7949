// SPDX-License-Identifier: Apache-2.0
//
// Batches: one kernel copies many blocks of any size and alignment. The host divides them among the
// workers (a warp each) by bytes; each worker copies its share piece by piece. The same code runs
// on a device and in the fake driver, where a worker has one lane.
//
//   shares      worker w copies from shares[w] to shares[w + 1]: block, and offset within it
//   finished    in device memory: the number of thread blocks that have ended; zero before and
//               after the kernel
//   word        in host memory: gets `value` when all bytes are in place
//
// In a stream-ordered batch the blocks and shares are the kernel's argument. A graph has its own
// copy of them, so the host keeps nothing and needs no completion.
#pragma once

#include <cstddef>
#include <cstdint>

#include "onehop/detail/copy.h"

namespace oh::kernels {

inline constexpr char kBatchKernel[] = "onehop_batch";
inline constexpr unsigned kBatchThreads = 512;
inline constexpr unsigned kBatchGrid = 64;
inline constexpr unsigned kBatchWorkers = kBatchGrid * kBatchThreads / 32;

struct BatchBlock {
  uint64_t to;
  uint64_t from;
  uint64_t size;
};

struct BatchShare {
  uint64_t block;
  uint64_t offset;
};

struct BatchArgs {
  const BatchBlock* blocks;
  const BatchShare* shares;
  uint64_t* finished;
  uint64_t* word;
  uint64_t value;
  uint32_t workers;
};

inline constexpr char kStreamBatchKernel[] = "onehop_stream_batch";
inline constexpr size_t kStreamBatchBlocks = 1000;
// Blocks of at most 4 GiB.
struct SmallBatchShare {
  uint32_t block;
  uint32_t offset;
};
struct StreamBatchArgs {
  uint64_t workers;
  SmallBatchShare shares[kBatchWorkers + 1];
  BatchBlock blocks[kStreamBatchBlocks];
};
static_assert(sizeof(StreamBatchArgs) <= 32764, "a launch takes so many bytes");

// A few blocks, without shares: the thread blocks are divided equally among them. A launch has 200
// bytes of arguments instead of 32 KB.
inline constexpr char kStreamFewBlocksKernel[] = "onehop_stream_few_blocks";
inline constexpr uint32_t kFewBlocks = 8;
struct FewBlocksArgs {
  uint32_t count;
  uint32_t each;  // thread blocks of a block
  BatchBlock blocks[kFewBlocks];
};

// Calls copy(to, from, size) for each piece of the worker's share.
template <typename Args, typename Copy>
ONEHOP_BOTH void walk_share(const Args& args, uint32_t worker, const Copy& copy) {
  auto at = args.shares[worker];
  const auto end = args.shares[worker + 1];
  const uint64_t behind = end.offset == 0 ? end.block : end.block + 1;
  if (at.block >= behind) return;
  BatchBlock block = args.blocks[at.block];
  while (true) {
    // Loads the next block's description while this block is copied.
    const BatchBlock next = at.block + 1 < behind ? args.blocks[at.block + 1] : block;
    const uint64_t upto = at.block == end.block ? end.offset : block.size;
    copy(block.to + at.offset, block.from + at.offset, upto - at.offset);
    if (++at.block == behind) return;
    at.offset = 0;
    block = next;
  }
}

}  // namespace oh::kernels
