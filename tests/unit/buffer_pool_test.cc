// SPDX-License-Identifier: Apache-2.0
#include "memory/buffer_pool.h"

#include "unit/support.h"

namespace unit::buffer_pool_test {
namespace {

using oh::BufferPool;
using oh::PooledBuffer;

struct Memory final : oh::BufferMemory {
  explicit Memory(size_t bytes) : own(bytes) { data = own.data(); }
  std::vector<uint8_t> own;
};

struct Source {
  size_t made = 0;
  bool fails = false;
  int marks[8] = {};
  oh::MakeMemory make() {
    return [this](size_t bytes) -> oh::Result<std::unique_ptr<oh::BufferMemory>> {
      if (fails) return oh::error(OH_ERR_SYSTEM, "no memory for %zu bytes", bytes);
      ++made;
      auto memory = std::make_unique<Memory>(bytes);
      memory->registration = &marks[made];
      return std::unique_ptr<oh::BufferMemory>(std::move(memory));
    };
  }
};

PooledBuffer take(BufferPool& pool, const void* who) {
  oh::Result<PooledBuffer> buffer = pool.take(0, who);
  EXPECT_TRUE(is_ok(buffer));
  return buffer.ok() ? *buffer : PooledBuffer{};
}

TEST(BufferPool, GrowsByAFewUpToItsLimit) {
  Source source;
  BufferPool pool(source.make(), 100, 6);
  EXPECT_EQ(source.made, 0u) << "made before they are needed";
  std::vector<PooledBuffer> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(take(pool, this));
  EXPECT_EQ(pool.stats().buffers, 4u);
  pool.grow_if_low();
  EXPECT_EQ(pool.stats().buffers, 6u) << "one was left, and six is the limit";
  EXPECT_EQ(source.made, 2u);
  for (int i = 0; i < 3; ++i) taken.push_back(take(pool, this));
  int of_second = 0;
  for (size_t i = 0; i < taken.size(); ++i) {
    ASSERT_NE(taken[i].data, nullptr);
    of_second += taken[i].registration == &source.marks[2];
    std::fill_n(taken[i].data, 100, static_cast<uint8_t>(i));
  }
  EXPECT_EQ(of_second, 2);
  for (size_t i = 0; i < taken.size(); ++i) {
    EXPECT_EQ(std::count(taken[i].data, taken[i].data + 100, i), 100) << "they overlap";
  }
  EXPECT_EQ(take(pool, this).data, nullptr);
  pool.grow_if_low();
  const oh::PoolStats stats = pool.stats();
  EXPECT_EQ(stats.size, 100u);
  EXPECT_EQ(stats.limit, 6u);
  EXPECT_EQ(stats.buffers, 6u);
  EXPECT_EQ(stats.in_use, 6u);
  EXPECT_EQ(stats.peak, 6u);
  EXPECT_EQ(stats.shortages, 1u);
  for (PooledBuffer& buffer : taken) pool.give(0, buffer);
  EXPECT_EQ(pool.stats().in_use, 0u);
}

TEST(BufferPool, WhoAskedFirstIsServedFirst) {
  Source source;
  BufferPool pool(source.make(), 64, 1);
  int first, second, third;
  PooledBuffer buffer = take(pool, &first);
  EXPECT_EQ(take(pool, &second).data, nullptr);
  EXPECT_EQ(take(pool, &third).data, nullptr);
  EXPECT_FALSE(pool.is_next_served(0));
  pool.give(0, buffer);
  EXPECT_TRUE(pool.is_next_served(0));
  EXPECT_EQ(take(pool, &third).data, nullptr) << "it is the second's";
  pool.forget(0, &second);
  EXPECT_TRUE(pool.is_next_served(0)) << "the third is next";
  buffer = take(pool, &third);
  ASSERT_NE(buffer.data, nullptr);
  EXPECT_FALSE(pool.is_next_served(0)) << "nobody waits";
  pool.give(0, buffer);
  EXPECT_EQ(source.made, 1u);
}

TEST(BufferPool, SaysThatThereIsNoMemory) {
  Source source;
  BufferPool pool(source.make(), 64, 8);
  source.fails = true;
  EXPECT_EQ(pool.take(0, this).status().code(), OH_ERR_SYSTEM);
  source.fails = false;
  std::vector<PooledBuffer> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(take(pool, this));
  source.fails = true;
  pool.grow_if_low();
  EXPECT_FALSE(pool.take(0, this).ok());
  EXPECT_EQ(pool.stats().in_use, 4u);
  pool.give(0, taken.back());
  EXPECT_EQ(take(pool, this).data, taken.back().data) << "what there is goes on";
  for (PooledBuffer& buffer : taken) pool.give(0, buffer);
}

}  // namespace
}  // namespace unit::buffer_pool_test
