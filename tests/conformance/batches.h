// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of batches: lists of blocks, and the owner of the target memory, which checks
// it.
#pragma once

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "conformance/sides.h"

namespace conformance {

inline oh_batch batch_of(Buffer& buffer) {
  oh_batch batch{};
  batch.struct_size = sizeof(batch);
  batch.local = buffer.data();
  batch.local_size = buffer.size();
  return batch;
}

// Blocks at equal offsets on both sides, or the blocks of one side.
struct Blocks {
  Blocks() = default;
  Blocks(std::vector<uint64_t> places, std::vector<uint64_t> sizes)
      : offsets(std::move(places)), lengths(std::move(sizes)) {}
  // `count` blocks of `length` bytes, `stride` bytes apart.
  Blocks(size_t count, uint64_t stride, uint64_t length) : lengths(count, length) {
    for (size_t i = 0; i < count; ++i) offsets.push_back(i * stride);
  }
  void add(uint64_t offset, uint64_t length) {
    offsets.push_back(offset);
    lengths.push_back(length);
  }
  // Returns poisoned memory of the size of `from`, with the blocks copied from it.
  onehop::Bytes moved(const onehop::Bytes& from) const {
    onehop::Bytes there(from.size(), 0xee);
    for (size_t i = 0; i < offsets.size(); ++i) {
      std::memcpy(there.data() + offsets[i], from.data() + offsets[i], lengths[i]);
    }
    return there;
  }
  uint64_t total() const { return std::accumulate(lengths.begin(), lengths.end(), uint64_t{0}); }
  oh_batch batch(Buffer& buffer) const {
    oh_batch batch = batch_of(buffer);
    batch.count = offsets.size();
    batch.local_offsets = batch.remote_offsets = offsets.data();
    batch.lengths = lengths.data();
    return batch;
  }
  oh_blocks of(Buffer& buffer) const {
    oh_blocks blocks{};
    blocks.struct_size = sizeof(blocks);
    blocks.memory = buffer.data();
    blocks.memory_size = buffer.size();
    blocks.count = offsets.size();
    blocks.offsets = offsets.data();
    blocks.lengths = lengths.data();
    return blocks;
  }

  std::vector<uint64_t> offsets;
  std::vector<uint64_t> lengths;
};

// Offers poisoned memory as a region and calls `look` on its bytes in each of `rounds` rounds.
using Look = std::function<void(size_t round, const onehop::Bytes& there)>;
inline Role owner(size_t space, size_t rounds, Look look) {
  return [=](Side& side) {
    Buffer buffer = side.buffer(space);
    buffer.poison();
    onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
    side.tell(region.descriptor());
    for (size_t round = 0; round < rounds; ++round) {
      side.sync();
      look(round, buffer.bytes());
      buffer.poison();
      side.sync();
    }
  };
}
// The initiator's part of a round.
inline void show(Side& side) {
  side.sync();
  side.sync();
}

}  // namespace conformance
