// SPDX-License-Identifier: Apache-2.0
//
// Batches over many pieces of local memory and many regions: lists, runs, direct and prepared; one
// notification after all of them; and batches that are rejected.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <random>

#include "conformance/sides.h"

namespace conformance::region_batches {
namespace {

using namespace std::chrono_literals;

constexpr size_t kRegions = 7;
constexpr size_t kLocals = 5;
constexpr size_t kSpace = 60000;
constexpr size_t kBlocks = 1500;
constexpr size_t kStep = 120;

// The memory of one side.
class Memory {
 public:
  Memory(Side& side, size_t count) {
    for (size_t i = 0; i < count; ++i) buffers_.push_back(side.buffer(kSpace));
  }
  void fill(uint64_t seed) {
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].fill(seed + i);
  }
  void poison() {
    for (Buffer& buffer : buffers_) buffer.poison();
  }
  std::vector<onehop::Bytes> bytes() const {
    std::vector<onehop::Bytes> all;
    for (const Buffer& buffer : buffers_) all.push_back(buffer.bytes());
    return all;
  }
  std::vector<oh_memory> pieces() {
    std::vector<oh_memory> pieces;
    for (Buffer& buffer : buffers_) pieces.push_back({buffer.data(), buffer.size()});
    return pieces;
  }
  std::deque<Buffer>& buffers() { return buffers_; }

 private:
  std::deque<Buffer> buffers_;
};

// Blocks between all pieces and all regions, which do not overlap.
struct Blocks {
  explicit Blocks(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<uint32_t> here(kLocals * (kSpace / kStep)), there(kRegions * (kSpace / kStep));
    for (size_t i = 0; i < here.size(); ++i) here[i] = static_cast<uint32_t>(i);
    for (size_t i = 0; i < there.size(); ++i) there[i] = static_cast<uint32_t>(i);
    std::shuffle(here.begin(), here.end(), random);
    std::shuffle(there.begin(), there.end(), random);
    for (size_t i = 0; i < kBlocks; ++i) {
      local.push_back(here[i] % kLocals);
      local_offsets.push_back(here[i] / kLocals * kStep);
      remote.push_back(there[i] % kRegions);
      remote_offsets.push_back(there[i] / kRegions * kStep);
      lengths.push_back(i % 11 == 0 ? 0 : 1 + random() % kStep);
    }
  }
  oh_region_batch of(const std::vector<oh_memory>& pieces,
                     const std::vector<oh_remote_region*>& regions) const {
    oh_region_batch batch{};
    batch.locals = pieces.data();
    batch.local_count = pieces.size();
    batch.remotes = regions.data();
    batch.remote_count = regions.size();
    batch.count = lengths.size();
    batch.local_index = local.data();
    batch.remote_index = remote.data();
    batch.local_offsets = local_offsets.data();
    batch.remote_offsets = remote_offsets.data();
    batch.lengths = lengths.data();
    return batch;
  }
  // Returns poisoned memory after copying `from` to `to`; `put`: `from` is local.
  std::vector<onehop::Bytes> moved(const std::vector<onehop::Bytes>& from, size_t to,
                                   bool put) const {
    std::vector<onehop::Bytes> all(to, onehop::Bytes(kSpace, 0xee));
    for (size_t i = 0; i < lengths.size(); ++i) {
      const uint8_t* source = put ? from[local[i]].data() + local_offsets[i]
                                  : from[remote[i]].data() + remote_offsets[i];
      uint8_t* target =
          put ? all[remote[i]].data() + remote_offsets[i] : all[local[i]].data() + local_offsets[i];
      std::memcpy(target, source, lengths[i]);
    }
    return all;
  }
  std::vector<uint32_t> local, remote;
  std::vector<uint64_t> local_offsets, remote_offsets, lengths;
};

std::vector<onehop::Bytes> content(Side& side, size_t count, uint64_t seed) {
  Memory memory(side, count);
  memory.fill(seed);
  return memory.bytes();
}

struct Remotes {
  explicit Remotes(Side& side, size_t count = kRegions) {
    for (size_t i = 0; i < count; ++i) {
      regions.push_back(side.peer().attach(side.hear()));
      handles.push_back(regions.back().get());
    }
  }
  std::deque<onehop::RemoteRegion> regions;
  std::vector<oh_remote_region*> handles;
};

std::deque<onehop::Region> show(Side& side, Memory& memory) {
  std::deque<onehop::Region> regions;
  for (Buffer& buffer : memory.buffers()) {
    regions.push_back(side.endpoint().register_memory(buffer.data(), buffer.size()));
    side.tell(regions.back().descriptor());
  }
  return regions;
}

TEST_P(OneSided, RegionBatchesMoveEveryBlock) {
  const Blocks blocks(1);
  run(
      [&](Side& side) {
        Remotes remotes(side);
        Memory memory(side, kLocals);
        const std::vector<oh_memory> pieces = memory.pieces();
        const oh_region_batch batch = blocks.of(pieces, remotes.handles);
        const onehop::Bytes all_there = {'p'}, all_here = {'g'};
        memory.fill(10);
        onehop::Message put = side.peer().put_regions(batch, &all_there).wait(20s);
        EXPECT_TRUE(side.kind().takes(put.path, side.kind().one_sided_path()));
        side.sync();  // the peer has checked its memory, and has filled it
        memory.poison();
        side.peer().get_regions(batch, &all_here).wait(20s);
        const auto expected = blocks.moved(content(side, kRegions, 30), kLocals, /*put=*/false);
        EXPECT_TRUE(memory.bytes() == expected);
        side.sync();
        // The same, prepared and posted twice.
        onehop::PreparedBatch prepared = side.peer().prepare_put_regions(batch);
        for (uint64_t round = 0; round < 2; ++round) {
          memory.fill(50 + 100 * round);
          prepared.post(&all_there).wait(20s);
          side.sync();
        }
        side.sync();
        memory.poison();
        side.peer().prepare_get_regions(batch).post(&all_here).wait(20s);
        EXPECT_TRUE(memory.bytes() == expected);
        side.sync();
      },
      [&](Side& side) {
        Memory memory(side, kRegions);
        memory.poison();
        auto regions = show(side, memory);
        auto await = [&](uint8_t what) {
          EXPECT_EQ(side.endpoint().wait_notification(20s).second, (onehop::Bytes{what}));
        };
        auto holds = [&](uint64_t seed) {
          return memory.bytes() == blocks.moved(content(side, kLocals, seed), kRegions, true);
        };
        await('p');
        EXPECT_TRUE(holds(10));  // all of them arrived before it
        memory.fill(30);
        side.sync();
        await('g');
        memory.poison();
        side.sync();
        for (uint64_t round = 0; round < 2; ++round) {
          await('p');
          EXPECT_TRUE(holds(50 + 100 * round));
          memory.poison();
          side.sync();
        }
        memory.fill(30);
        side.sync();
        await('g');
        side.sync();
        EXPECT_FALSE(side.endpoint().notification());  // one per batch
      });
}

TEST_P(OneSided, RunsOfBlocksNeedNoLists) {
  const std::vector<uint32_t> local = {1, 0, 1}, remote = {0, 1, 2};
  const std::vector<uint64_t> local_offsets = {10, 0, 30000}, remote_offsets = {7, 100, 0};
  const std::vector<uint64_t> lengths = {100, 60, 1}, counts = {200, 100, 50};
  const std::vector<uint64_t> ours = {130, 60, 3}, theirs = {111, 60, 7};
  run(
      [&](Side& side) {
        Remotes remotes(side, 3);
        Memory memory(side, 2);
        memory.fill(1);
        const std::vector<oh_memory> pieces = memory.pieces();
        oh_region_batch batch{};
        batch.locals = pieces.data();
        batch.local_count = 2;
        batch.remotes = remotes.handles.data();
        batch.remote_count = 3;
        batch.count = 3;
        batch.local_index = local.data();
        batch.remote_index = remote.data();
        batch.local_offsets = local_offsets.data();
        batch.remote_offsets = remote_offsets.data();
        batch.lengths = lengths.data();
        batch.counts = counts.data();
        batch.local_strides = ours.data();
        batch.remote_strides = theirs.data();
        side.peer().put_regions(batch).wait(20s);
        side.sync();
      },
      [&](Side& side) {
        Memory memory(side, 3);
        memory.poison();
        auto regions = show(side, memory);
        side.sync();
        const std::vector<onehop::Bytes> from = content(side, 2, 1);
        std::vector<onehop::Bytes> expected(3, onehop::Bytes(kSpace, 0xee));
        for (size_t i = 0; i < 3; ++i) {
          for (uint64_t j = 0; j < counts[i]; ++j) {
            std::memcpy(expected[remote[i]].data() + remote_offsets[i] + j * theirs[i],
                        from[local[i]].data() + local_offsets[i] + j * ours[i], lengths[i]);
          }
        }
        EXPECT_TRUE(memory.bytes() == expected);
      });
}

TEST_P(OneSided, RegionBatchesThatAreWrongMoveNothing) {
  run(
      [&](Side& side) {
        Remotes remotes(side, 2);
        Memory memory(side, 2);
        memory.fill(1);
        const std::vector<oh_memory> pieces = memory.pieces();
        const uint32_t index[] = {0, 1}, beyond[] = {0, 2};
        const uint64_t zeros[] = {0, 0}, lengths[] = {kSpace, kSpace}, longer[] = {8, kSpace + 1};
        const uint64_t huge[] = {1, uint64_t{1} << 40}, far[] = {0, UINT64_MAX / 2};
        oh_region_batch good{};
        good.locals = pieces.data();
        good.local_count = 2;
        good.remotes = remotes.handles.data();
        good.remote_count = 2;
        good.count = 2;
        good.local_index = good.remote_index = index;
        good.local_offsets = good.remote_offsets = zeros;
        good.lengths = lengths;
        auto status = [&](auto change) {
          oh_region_batch batch = good;
          change(batch);
          return status_of([&] { side.peer().put_regions(batch).wait(20s); });
        };
        using Batch = oh_region_batch;
        EXPECT_EQ(status([&](Batch& b) { b.local_index = beyond; }), OH_ERR_RANGE);
        EXPECT_EQ(status([&](Batch& b) { b.remote_index = beyond; }), OH_ERR_RANGE);
        EXPECT_EQ(status([&](Batch& b) { b.lengths = longer; }), OH_ERR_RANGE);
        EXPECT_EQ(status([&](Batch& b) { b.local_offsets = far; }), OH_ERR_RANGE);
        EXPECT_EQ(status([&](Batch& b) { b.remote_offsets = far; }), OH_ERR_RANGE);
        EXPECT_EQ(status([&](Batch& b) { b.lengths = nullptr; }), OH_ERR_INVALID);
        EXPECT_EQ(status([&](Batch& b) { b.locals = nullptr; }), OH_ERR_INVALID);
        EXPECT_EQ(status([&](Batch& b) { b.remotes = nullptr; }), OH_ERR_INVALID);
        EXPECT_EQ(status([&](Batch& b) { b.counts = index[1] ? lengths : nullptr; }),
                  OH_ERR_INVALID);  // without strides
        auto runs = [&](Batch& b, const uint64_t* counts, const uint64_t* strides) {
          b.counts = counts;
          b.local_strides = b.remote_strides = strides;
        };
        EXPECT_EQ(status([&](Batch& b) { runs(b, huge, zeros); }), OH_ERR_INVALID);
        const uint64_t twice[] = {1, 3};
        EXPECT_EQ(status([&](Batch& b) { runs(b, twice, far); }), OH_ERR_RANGE);
        EXPECT_EQ(status([&](Batch& b) { b.count = 0; }), OH_OK);
        EXPECT_EQ(status([](Batch& b) { b = {}; }), OH_OK);  // also without anything
        side.sync();
        side.sync();  // the peer has checked its memory
        EXPECT_EQ(status([](Batch&) {}), OH_OK);
        side.sync();
        // One of the regions is retired: nothing is put into the other.
        side.sync();
        EXPECT_EQ(status([](Batch&) {}), OH_ERR_RETIRED);
        side.sync();
      },
      [](Side& side) {
        Memory memory(side, 2);
        memory.poison();
        auto regions = show(side, memory);
        side.sync();
        for (const onehop::Bytes& bytes : memory.bytes()) {
          EXPECT_EQ(std::ranges::count(bytes, 0xee), static_cast<ptrdiff_t>(kSpace));
        }
        side.sync();
        side.sync();
        EXPECT_TRUE(memory.bytes() == content(side, 2, 1));
        regions.back().deregister();
        side.sync();
        side.sync();
      });
}

}  // namespace
}  // namespace conformance::region_batches
