// SPDX-License-Identifier: Apache-2.0
#include "message/batch/batch_offer.h"

#include <algorithm>
#include <cstring>

namespace oh {
namespace {
constexpr size_t kMaxDescriptor = 1024;  // of a region in one piece

ByteView as_bytes(const uint64_t* numbers, uint64_t count) {
  return {reinterpret_cast<const uint8_t*>(numbers), count * sizeof(uint64_t)};
}
}  // namespace

Result<uint64_t> BlockLayout::measure(uint64_t bound, const char* memory) const {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t at = 0;
    if (!offsets && !stride_to(base, stride, i, &at)) return block_beyond_offsets(i);
    if (!slice_fits(offset(i), size(i), bound)) {
      return block_outside(i, offset(i), size(i), {bound, memory});
    }
    if (__builtin_add_overflow(sum, size(i), &sum)) {
      return error(OH_ERR_RANGE, "block %llu: the sum of the lengths does not fit into 64 bits",
                   static_cast<unsigned long long>(i));
    }
  }
  return sum;
}

std::vector<Block> cut(const LocalBlocks& ours, const BlockLayout& theirs) {
  std::vector<Block> pieces;
  pieces.reserve(ours.blocks.count);
  uint64_t block = 0;   // of the remote layout
  uint64_t within = 0;  // bytes of that block already paired
  for (uint64_t i = 0; i < ours.blocks.count; ++i) {
    uint8_t* local = ours.memory + ours.blocks.offset(i);
    uint64_t left = ours.blocks.size(i);
    while (left > 0 && block < theirs.count) {
      uint64_t piece = std::min(left, theirs.size(block) - within);
      Block next{local, theirs.offset(block) + within, piece};
      if (piece > 0 && (pieces.empty() || !pieces.back().join(next))) pieces.push_back(next);
      local += piece;
      left -= piece;
      within += piece;
      if (within < theirs.size(block)) continue;
      ++block;
      within = 0;
    }
  }
  return pieces;
}

Bytes BatchOffer::encode(ByteView descriptor, const BlockLayout& blocks) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u64(0);
  writer.bytes(descriptor);
  writer.u64(blocks.count);
  writer.u8(blocks.offsets != nullptr);
  if (blocks.offsets) {
    writer.raw(as_bytes(blocks.offsets, blocks.count));
    writer.raw(as_bytes(blocks.lengths, blocks.count));
  } else {
    for (uint64_t number : {blocks.base, blocks.stride, blocks.length}) writer.u64(number);
  }
  return bytes;
}

void BatchOffer::set_op(Bytes& offer, uint64_t op) { std::memcpy(offer.data(), &op, sizeof(op)); }

Result<BatchOffer> BatchOffer::decode(ByteView bytes) {
  Reader reader(bytes);
  BatchOffer offer;
  offer.op = reader.u64();
  ByteView descriptor = reader.bytes(kMaxDescriptor);
  offer.descriptor.assign(descriptor.begin(), descriptor.end());
  offer.blocks.count = reader.u64();
  bool listed = reader.u8() != 0;
  if (reader.ok() && offer.blocks.count <= BlockLayout::kMost && listed) {
    ByteView numbers = reader.raw(2 * offer.blocks.count * sizeof(uint64_t));
    // Never empty, so that `offsets` is not null for a list of no blocks.
    offer.numbers.resize(numbers.size() / sizeof(uint64_t) + 1);
    if (!numbers.empty()) std::memcpy(offer.numbers.data(), numbers.data(), numbers.size());
    offer.blocks.offsets = offer.numbers.data();
    offer.blocks.lengths = offer.numbers.data() + numbers.size() / sizeof(uint64_t) / 2;
  } else if (!listed) {
    offer.blocks.base = reader.u64();
    offer.blocks.stride = reader.u64();
    offer.blocks.length = reader.u64();
  }
  if (!reader.at_end() || offer.blocks.count > BlockLayout::kMost) {
    return error(OH_ERR_PROTOCOL,
                 "a receive of a batch was described in %zu bytes that make no sense",
                 bytes.size());
  }
  return offer;
}

}  // namespace oh
