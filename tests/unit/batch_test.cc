// SPDX-License-Identifier: Apache-2.0
//
// The batch kernel's code on the host: how blocks are divided among workers, and how a worker
// copies.
#include "kernels/batch.h"

#include <random>

#include "device/batches.h"
#include "unit/support.h"

namespace batch_test {
namespace {

using namespace oh;
using kernels::BatchBlock;
using kernels::BatchShare;

struct Piece {
  uint64_t to, from, size;
};

// The pieces that each worker copies.
std::vector<std::vector<Piece>> shares_of(const std::vector<BatchBlock>& blocks, uint32_t workers) {
  std::vector<BatchShare> shares(workers + 1);
  kernels::BatchArgs args{};
  args.workers = divide(blocks, workers, shares.data());
  EXPECT_LE(args.workers, workers);
  args.blocks = blocks.data();
  args.shares = shares.data();
  std::vector<std::vector<Piece>> all(args.workers);
  for (uint32_t worker = 0; worker < args.workers; ++worker) {
    kernels::walk_share(args, worker, [&](uint64_t to, uint64_t from, uint64_t size) {
      all[worker].push_back({to, from, size});
    });
  }
  return all;
}

// Together the shares must cover the blocks, each byte once and in order.
void expect_all(const std::vector<BatchBlock>& blocks, uint32_t workers) {
  size_t block = 0;
  uint64_t offset = 0;
  auto skip_done = [&] {
    while (block < blocks.size() && offset == blocks[block].size) {
      ++block;
      offset = 0;
    }
  };
  for (const std::vector<Piece>& share : shares_of(blocks, workers)) {
    for (const Piece& piece : share) {
      if (piece.size == 0) continue;
      skip_done();
      ASSERT_LT(block, blocks.size());
      EXPECT_EQ(piece.to, blocks[block].to + offset);
      EXPECT_EQ(piece.from, blocks[block].from + offset);
      ASSERT_LE(offset + piece.size, blocks[block].size);
      offset += piece.size;
    }
  }
  skip_done();
  EXPECT_EQ(block, blocks.size());
}

uint64_t bytes_of(const std::vector<Piece>& share) {
  uint64_t bytes = 0;
  for (const Piece& piece : share) bytes += piece.size;
  return bytes;
}

TEST(BatchTest, EveryByteIsSomebodysOnce) {
  std::mt19937 random(1);
  for (uint32_t workers : {1u, 2u, 7u, 64u, 1024u}) {
    for (size_t count : {1u, 2u, 100u, 3000u}) {
      std::vector<BatchBlock> blocks;
      for (size_t i = 0; i < count; ++i) {
        uint64_t size = random() % 4 == 0 ? random() % 2 : random() % 100'000;
        blocks.push_back({random(), random(), size});
      }
      SCOPED_TRACE(strf("%u workers, %zu blocks", workers, count));
      expect_all(blocks, workers);
    }
  }
}

TEST(BatchTest, OneHugeBlockAmongTinyOnesIsDivided) {
  constexpr uint64_t kHuge = 64 << 20;
  std::vector<BatchBlock> blocks(1000, {1 << 20, 2 << 20, 1});
  blocks[500] = {1 << 20, 2 << 20, kHuge};
  std::vector<std::vector<Piece>> shares = shares_of(blocks, 512);
  expect_all(blocks, 512);
  ASSERT_EQ(shares.size(), 512u);
  for (const std::vector<Piece>& share : shares) EXPECT_LE(bytes_of(share), kHuge / 512 + 2048);
}

TEST(BatchTest, LittleWorkTakesFewWorkers) {
  EXPECT_EQ(shares_of({{0, 0, 1000}, {0, 0, 1000}}, 1024).size(), 1u);
  EXPECT_LE(shares_of(std::vector<BatchBlock>(10, {0, 0, 4096}), 1024).size(), 12u);
}

// Every alignment of both sides, and sizes around words and rounds; adjacent bytes stay unchanged.
TEST(BatchTest, CopiesAtEveryAlignment) {
  constexpr size_t kSpace = 4096;
  alignas(16) static uint8_t source[kSpace];
  alignas(16) static uint8_t target[kSpace];
  for (size_t i = 0; i < kSpace; ++i) source[i] = static_cast<uint8_t>(i * 7 + i / 251);
  for (size_t to = 16; to < 32; ++to) {
    for (size_t from = 16; from < 32; ++from) {
      for (size_t size : {0, 1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 256, 1000, 2049}) {
        std::fill(std::begin(target), std::end(target), 0xee);
        onehop::detail::copy_together(onehop::detail::OneLane(), target + to, source + from, size);
        for (size_t i = 0; i < kSpace; ++i) {
          bool within = i >= to && i < to + size;
          ASSERT_EQ(target[i], within ? source[i - to + from] : 0xee)
              << i << " of " << size << " bytes from " << from << " to " << to;
        }
      }
    }
  }
}

}  // namespace
}  // namespace batch_test
