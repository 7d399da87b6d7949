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

// One piece of a put or get: our memory, and where in the remote region.
struct Block {
  uint8_t* local;
  uint64_t remote_offset;
  uint64_t size;

  // Takes one in that follows on both sides.
  bool join(const Block& next) {
    if (next.local != local + size || next.remote_offset != remote_offset + size) return false;
    size += next.size;
    return true;
  }
};

// Those of an operation that outlives its call; all posts of a prepared batch share them.
using BlockList = std::shared_ptr<const std::vector<Block>>;

// Blocks that travel as one message: byte after byte in the order of the list.
class BlockRun {
 public:
  BlockRun() = default;
  // `op`: the other side's name for it, where it serves that.
  BlockRun(BlockList list, std::span<const Block> blocks, uint64_t op)
      : list_(std::move(list)), blocks_(blocks), op_(op) {}

  bool empty() const { return blocks_.empty(); }
  std::span<const Block> blocks() const { return blocks_; }
  uint64_t op() const { return op_; }
  // Where its byte `offset` is, and what follows there. Offsets never become less.
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
  size_t index_ = 0;     // of the block that at() was in last
  uint64_t before_ = 0;  // bytes of those before it
};

}  // namespace oh
