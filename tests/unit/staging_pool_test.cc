// SPDX-License-Identifier: Apache-2.0
#include "memory/staging_pool.h"

#include <atomic>
#include <cstdlib>

#include "unit/fake_gpu.h"

namespace unit::staging_pool_test {
namespace {

using oh::PooledBuffer;
using oh::StagingDirection;
using oh::StagingPool;

class StagingPoolTest : public GpuTest {
 protected:
  PooledBuffer take(StagingPool& pool, StagingDirection direction, const void* who) {
    oh::Result<PooledBuffer> buffer = pool.take(direction, who);
    EXPECT_TRUE(is_ok(buffer));
    return buffer.ok() ? *buffer : PooledBuffer{};
  }
};

constexpr auto kOut = StagingDirection::kOut;
constexpr auto kIn = StagingDirection::kIn;

TEST_F(StagingPoolTest, EachDirectionHasItsOwn) {
  StagingPool pool(gpu, 8192, 2);
  EXPECT_EQ(pool.stats().buffers, 0u) << "made before they are needed";
  const PooledBuffer first = take(pool, kOut, this);
  const PooledBuffer second = take(pool, kOut, this);
  ASSERT_TRUE(first.data && second.data);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data) % 4096, 0u);
  EXPECT_GE(std::abs(first.data - second.data), 8192);
  EXPECT_EQ(take(pool, kOut, this).data, nullptr);
  const PooledBuffer third = take(pool, kIn, this);
  EXPECT_NE(third.data, nullptr);
  EXPECT_NE(StagingPool::on_device(third), 0u);
  EXPECT_EQ(pool.stats().buffers, 4u);
  EXPECT_EQ(pool.stats().in_use, 3u);
  EXPECT_EQ(pool.stats().shortages, 1u);
  for (const PooledBuffer& buffer : {first, second}) pool.give(kOut, buffer);
  pool.give(kIn, third);
  EXPECT_EQ(pool.stats().in_use, 0u);
  EXPECT_EQ(pool.stats().peak, 3u);
}

TEST_F(StagingPoolTest, WhoAskedFirstIsNext) {
  StagingPool pool(gpu, 4096, 1);
  int first, second, third;
  PooledBuffer buffer = take(pool, kOut, &first);
  EXPECT_EQ(take(pool, kOut, &second).data, nullptr);
  EXPECT_EQ(take(pool, kOut, &third).data, nullptr);
  EXPECT_EQ(take(pool, kOut, &second).data, nullptr) << "counted once";
  EXPECT_EQ(pool.stats().shortages, 2u);
  pool.give(kOut, buffer);
  EXPECT_EQ(take(pool, kOut, &first).data, nullptr) << "others have asked before";
  EXPECT_EQ(take(pool, kOut, &third).data, nullptr);
  buffer = take(pool, kOut, &second);
  ASSERT_NE(buffer.data, nullptr);
  pool.give(kOut, buffer);
  pool.forget(kOut, &third);
  buffer = take(pool, kOut, &first);
  ASSERT_NE(buffer.data, nullptr);
  pool.give(kOut, buffer);
}

TEST_F(StagingPoolTest, GrowsBeforeTheLastIsTaken) {
  StagingPool pool(gpu, 4096, 64);
  std::vector<PooledBuffer> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(take(pool, kIn, this));
  EXPECT_EQ(pool.stats().buffers, 4u);
  pool.grow_if_low();
  EXPECT_EQ(pool.stats().buffers, 8u);
  for (const PooledBuffer& buffer : taken) pool.give(kIn, buffer);
}

TEST_F(StagingPoolTest, ADriverThatPinsNothingIsAnError) {
  StagingPool pool(gpu, 4096, 4);
  ASSERT_EQ(fake.fail("cuMemHostRegister_v2", 1, 2), 0);
  EXPECT_FALSE(pool.take(kOut, this).ok());
  EXPECT_EQ(pool.stats().in_use, 0u);
  PooledBuffer buffer = take(pool, kOut, this);
  ASSERT_NE(buffer.data, nullptr);
  pool.give(kOut, buffer);
}

TEST_F(StagingPoolTest, ThreadsShareIt) {
  StagingPool pool(gpu, 4096, 3);
  std::atomic<int> holders{0};
  {
    Threads threads;
    for (int i = 0; i < 4; ++i) {
      threads.start([&, i] {
        int me;
        for (int round = 0; round < 500;) {
          oh::Result<PooledBuffer> buffer = pool.take(kOut, &me);
          if (!buffer.ok() || !buffer->data) continue;
          EXPECT_LE(++holders, 3);
          *buffer->data = static_cast<uint8_t>(i);
          pool.grow_if_low();
          EXPECT_EQ(*buffer->data, i) << "two have one buffer";
          --holders;
          pool.give(kOut, *buffer);
          ++round;
        }
      });
    }
  }
  EXPECT_EQ(pool.stats().in_use, 0u);
  EXPECT_LE(pool.stats().buffers, 6u);
}

}  // namespace
}  // namespace unit::staging_pool_test
