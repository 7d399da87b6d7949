// SPDX-License-Identifier: Apache-2.0
//
// Groups of onehop/device.cuh on host threads in place of a block's: all threads get the leader's
// values, whichever groups a kernel uses, nested, copied, or side by side. The other threads are
// delayed after each barrier.
#include <atomic>
#include <barrier>

#include "unit/device_protocol.h"

namespace {

constexpr uint32_t kThreads = 4;

// The parts of CUDA that groups.cuh uses before sm_90.
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
// Warps are not tested here.
[[maybe_unused]] void __syncwarp() { abort(); }
[[maybe_unused]] int __any_sync(unsigned, int) { abort(); }
[[maybe_unused]] uint64_t __shfl_sync(unsigned, uint64_t, int) { abort(); }

}  // namespace

namespace onehop::detail {
// Half of the block's threads meet at each.
struct Named {
  std::barrier<> barrier{kThreads / 2};
  std::atomic<uint32_t> votes{0};
};
Named* g_named = nullptr;

void sync_named(uint32_t barrier, uint32_t threads) {
  if (threads != 32 * (kThreads / 2)) abort();
  g_named[barrier].barrier.arrive_and_wait();
  if (threadIdx.x != 0) std::this_thread::yield();
}
bool any_named(uint32_t barrier, uint32_t threads, bool flag) {
  g_named[barrier].votes.fetch_add(flag ? 1 : 0);
  sync_named(barrier, threads);
  const bool found = g_named[barrier].votes.load() != 0;
  sync_named(barrier, threads);
  g_named[barrier].votes.store(0);
  sync_named(barrier, threads);
  return found;
}
}  // namespace onehop::detail

#define __CUDA_ARCH__ 800
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#include "onehop/detail/coop_group.cuh"
#undef __shared__
#undef __noinline__
#undef __forceinline__
#undef __device__
#undef __CUDA_ARCH__

namespace {

using onehop::BlockGroup;

// Runs the body as a block would; each thread counts the errors that it finds.
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
        // Only the leader passes the right value.
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

// The groups have a thread at every kStep-th rank.
template <uint32_t kStep = 1, typename Group>
void use_all(Group& group, std::atomic<uint32_t>& wrong) {
  for (uint64_t i = 0; i < kRounds; ++i) {
    wrong += group.share(group.leads() ? i : ~i) != i;
    const uint64_t who = i % 5 * kStep;
    wrong += group.any(group.rank() == who) != (who < group.size());
  }
}

// Each host thread stands for the first of a warp.
TEST(DeviceGroupsTest, WarpsOfTwoBarriersShareAndVoteSideBySide) {
  constexpr uint32_t kWarps = kThreads / 2;
  std::unique_ptr<onehop::detail::Named[]> named(new onehop::detail::Named[16]);
  onehop::detail::g_named = named.get();
  std::atomic<uint32_t> wrong{0};
  run_block([&](auto) {
    const uint32_t half = threadIdx.x / kWarps;
    threadIdx.x *= 32;
    onehop::WarpsGroup group(2 + half, half * kWarps, kWarps);
    use_all<32>(group, wrong);
  });
  EXPECT_EQ(wrong.load(), 0u);
}

// The members that all cooperative groups share.
struct Plain {
  uint32_t thread_rank() const { return threadIdx.x; }
  uint32_t size() const { return kThreads; }
  void sync() { __syncthreads(); }
};
// A user-defined group, such as a part of a block.
struct PlainPart : Plain {
  Index thread_index() const { return threadIdx; }
};
// A cooperative-groups thread block.
struct PlainBlock : PlainPart {
  uint64_t num_threads() const { return kThreads; }
  Index group_index() const { return {}; }
};
struct PlainGrid : PlainBlock {
  uint64_t num_blocks() const { return 1; }
};
// A tile of one thread.
struct PlainTile {
  uint32_t thread_rank() const { return 0; }
  uint32_t num_threads() const { return 1; }
  void sync() const {}
  int any(int flag) const { return flag; }
  template <typename T>
  T shfl(T value, int /*rank*/) const {
    return value;
  }
};

TEST(DeviceGroupsTest, CooperativeGroupsOfAnyKindShareAndVote) {
  static_assert(onehop::detail::CoopKind<PlainTile>::kVotes);
  static_assert(onehop::detail::CoopKind<PlainBlock>::kBlock);
  static_assert(!onehop::detail::CoopKind<PlainGrid>::kBlock, "a block's place is not all's");
  static_assert(!onehop::detail::CoopKind<Plain>::kBlock);
  static_assert(!onehop::detail::CoopKind<PlainPart>::kBlock, "the block's barrier is not its");
  std::atomic<uint32_t> wrong{0};
  uint64_t place = 0;
  run_block([&](auto) {
    onehop::CoopGroup plain(Plain{}, &place);
    use_all(plain, wrong);
    onehop::CoopGroup block(PlainBlock{});
    use_all(block, wrong);
    onehop::CoopGroup tile(PlainTile{});
    use_all(tile, wrong);
    onehop::ThreadGroup alone;
    use_all(alone, wrong);
  });
  EXPECT_EQ(wrong.load(), 0u);
}

}  // namespace
