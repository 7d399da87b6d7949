// SPDX-License-Identifier: Apache-2.0
//
// BatchOffer: the message by which a receive of a batch sends the layout of its blocks to the
// sender.
//
//   | op 8 | descriptor of a region, bytes | count 8 | listed 1 |
//   | offsets 8 x count | lengths 8 x count |      listed
//   | base 8 | stride 8 | length 8 |               strided
//
// Threading: values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/wire.h"
#include "one_sided/one_sided.h"

namespace oh {

// Blocks of one memory: block i is lengths[i] bytes at offsets[i], or, strided, `length` bytes at
// base + i * stride. The caller owns the arrays.
struct BlockLayout {
  static constexpr uint64_t kMost = 1 << 20;  // bounds what a peer can make this side allocate

  uint64_t count = 0;
  const uint64_t* offsets = nullptr;  // null: strided
  const uint64_t* lengths = nullptr;
  uint64_t base = 0;
  uint64_t stride = 0;
  uint64_t length = 0;

  uint64_t offset(uint64_t block) const { return offsets ? offsets[block] : base + block * stride; }
  uint64_t size(uint64_t block) const { return offsets ? lengths[block] : length; }
  // Total bytes of all blocks. OH_ERR_RANGE: names a block that is outside of the `bound` bytes of
  // `memory`.
  Result<uint64_t> measure(uint64_t bound, const char* memory) const;
};

// The local side of a batch.
struct LocalBlocks {
  uint8_t* memory = nullptr;
  uint64_t size = 0;
  BlockLayout blocks;
  uint64_t bytes = 0;  // of all blocks
};

// Pairs the bytes of both sides, until the local ones are used up: a piece ends where a block of
// either side ends, unless the next one is contiguous on both. The remote blocks must have at least
// as many bytes.
std::vector<Block> cut(const LocalBlocks& ours, const BlockLayout& theirs);

struct BatchOffer {
  static constexpr size_t kMaxBytes = 2 * BlockLayout::kMost * sizeof(uint64_t) + 4096;

  uint64_t op = 0;  // the receive's operation ID
  Bytes descriptor;
  BlockLayout blocks;             // its arrays point into `numbers`
  std::vector<uint64_t> numbers;  // offsets, then lengths

  BatchOffer() = default;
  BatchOffer(BatchOffer&&) = default;
  BatchOffer& operator=(BatchOffer&&) = default;

  static Bytes encode(ByteView descriptor, const BlockLayout& blocks);
  // Stores the operation ID, which is known only when the offer is posted.
  static void set_op(Bytes& offer, uint64_t op);
  static Result<BatchOffer> decode(ByteView bytes);
};

}  // namespace oh
