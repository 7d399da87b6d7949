// SPDX-License-Identifier: Apache-2.0
//
// Blocks of one-sided operations, and runs of them.
//
// Threading: values; a run's cursor is guarded by the link's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace oh {

// One piece of a put or get: local memory, and the offset in the remote region.
struct Block {
  uint8_t* local;
  uint64_t remote_offset;
  uint64_t size;

  // Merges `next` if it directly follows on both sides.
  bool join(const Block& next) {
    if (next.local != local + size || next.remote_offset != remote_offset + size) return false;
    size += next.size;
    return true;
  }
};

// The blocks of an operation that outlives its call. All posts of a prepared batch share one list.
using BlockList = std::shared_ptr<const std::vector<Block>>;

// Blocks sent as one message: their bytes in the order of the list.
class BlockRun {
 public:
  BlockRun() = default;
  // `op`: the peer's name for the operation, if this side serves it for the peer.
  BlockRun(BlockList list, std::span<const Block> blocks, uint64_t op)
      : list_(std::move(list)), blocks_(blocks), op_(op) {}

  bool empty() const { return blocks_.empty(); }
  std::span<const Block> blocks() const { return blocks_; }
  uint64_t op() const { return op_; }
  // The memory from byte `offset` of the run to the end of its block. Offsets must not decrease.
  std::span<uint8_t> at(uint64_t offset) {
    while (index_ < blocks_.size() && offset - before_ >= blocks_[index_].size) {
      before_ += blocks_[index_++].size;
    }
    if (index_ == blocks_.size()) return {};
    const Block& block = blocks_[index_];
    return {block.local + (offset - before_), block.size - (offset - before_)};
  }

 private:
  BlockList list_;
  std::span<const Block> blocks_;  // of the list
  uint64_t op_ = 0;
  size_t index_ = 0;     // the block of the last at()
  uint64_t before_ = 0;  // bytes of the blocks before it
};

}  // namespace oh
