// SPDX-License-Identifier: Apache-2.0
//
// BlockGroup of onehop/device.cuh, on host threads in the place of a block's: what it shares is the
// leader's whichever groups a kernel has, nested, copied, or beside each other. Threads other than
// the leader are late behind each barrier.
#include <atomic>
#include <barrier>

#include "unit/device_protocol.h"

namespace {

constexpr uint32_t kThreads = 4;

// What CUDA has, as far as groups.cuh uses it before sm_90.
struct Index {
  uint32_t x, y, z;
};
thread_local Index threadIdx{};
constexpr Index blockDim{kThreads, 1, 1};

struct Block {
  std::barrier<> barrier{kThreads};
  std::atomic<uint32_t> votes{0};
};
Block* g_block = nullptr;

void __syncthreads() {
  g_block->barrier.arrive_and_wait();
  if (threadIdx.x != 0) std::this_thread::yield();
}
[[maybe_unused]] int __syncthreads_or(int flag) {
  if (flag != 0) g_block->votes.fetch_add(1);
  __syncthreads();
  const bool found = g_block->votes.load() != 0;
  __syncthreads();
  if (threadIdx.x == 0) g_block->votes.store(0);
  __syncthreads();
  return found ? 1 : 0;
}
// Of a warp, which is not tested here.
[[maybe_unused]] void __syncwarp() { abort(); }
[[maybe_unused]] int __any_sync(unsigned, int) { abort(); }
[[maybe_unused]] uint64_t __shfl_sync(unsigned, uint64_t, int) { abort(); }

}  // namespace

#define __CUDA_ARCH__ 800
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#include "onehop/detail/groups.cuh"
#undef __shared__
#undef __noinline__
#undef __forceinline__
#undef __device__
#undef __CUDA_ARCH__

namespace {

using onehop::BlockGroup;

// Runs the body as a block would; all of its threads count what they find wrong.
template <typename Body>
uint32_t run_block(Body body) {
  Block block;
  g_block = &block;
  std::atomic<uint32_t> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      threadIdx = {i, 0, 0};
      body([&](BlockGroup& group, uint64_t value) {
        // Only the leader has it.
        if (group.share(group.leads() ? value : ~value) != value) ++wrong;
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return wrong.load();
}

constexpr uint64_t kRounds = 300;

TEST(DeviceGroupsTest, OneGroupSharesManyValues) {
  EXPECT_EQ(run_block([](auto expect) {
              BlockGroup group;
              for (uint64_t i = 0; i < kRounds; ++i) expect(group, i);
            }),
            0u);
}

TEST(DeviceGroupsTest, TwoGroupsOfAKernelShareInTurns) {
  EXPECT_EQ(run_block([](auto expect) {
              BlockGroup one;
              BlockGroup other;
              for (uint64_t i = 0; i < kRounds; ++i) {
                expect(one, 2 * i);
                expect(other, 2 * i + 1);
              }
            }),
            0u);
}

TEST(DeviceGroupsTest, ACopySharesBesideItsOriginal) {
  EXPECT_EQ(run_block([](auto expect) {
              BlockGroup group;
              auto by_value = [&](BlockGroup copy, uint64_t value) { expect(copy, value); };
              for (uint64_t i = 0; i < kRounds; ++i) {
                by_value(group, 2 * i);
                expect(group, 2 * i + 1);
              }
            }),
            0u);
}

TEST(DeviceGroupsTest, AGroupIsMadeWithinTheCallOfAnother) {
  EXPECT_EQ(run_block([](auto expect) {
              BlockGroup outer;
              for (uint64_t i = 0; i < kRounds; ++i) {
                expect(outer, 3 * i);
                BlockGroup inner;
                expect(inner, 3 * i + 1);
                expect(outer, 3 * i + 2);
              }
            }),
            0u);
}

}  // namespace
