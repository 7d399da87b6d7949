// SPDX-License-Identifier: Apache-2.0
//
// Atomic operations of kernels, run by host threads: which are rejected, and that none is lost.
#include "onehop/detail/atomic.h"

#include "unit/device_protocol.h"

namespace device_atomics_test {
namespace {

using namespace unit;

struct RemoteWords {
  alignas(8) uint64_t words[4] = {5, 6, 7, 8};
  uint64_t address(uint64_t offset) const { return reinterpret_cast<uint64_t>(words) + offset; }
  oh_remote_memory memory() const { return {address(0), sizeof(words)}; }
};

TEST(DeviceAtomicsTest, TheyReturnWhatWasThere) {
  RemoteWords remote;
  uint64_t before = 0;
  EXPECT_EQ(fetch_add<HostAtomics>(remote.memory(), 8, 10, &before), OH_LANE_OK);
  EXPECT_EQ(before, 6u);
  EXPECT_EQ(remote.words[1], 16u);
  EXPECT_EQ(compare_swap<HostAtomics>(remote.memory(), 8, 15, 1, &before), OH_LANE_OK);
  EXPECT_EQ(before, 16u);
  EXPECT_EQ(remote.words[1], 16u);
  EXPECT_EQ(compare_swap<HostAtomics>(remote.memory(), 8, 16, 1, &before), OH_LANE_OK);
  EXPECT_EQ(before, 16u);
  EXPECT_EQ(remote.words[1], 1u);
  EXPECT_EQ(fetch_add<HostAtomics>(remote.memory(), 24, UINT64_MAX, nullptr), OH_LANE_OK);
  EXPECT_EQ(remote.words[3], 7u);
}

TEST(DeviceAtomicsTest, WhatIsNotWithinTheMemoryIsRefused) {
  RemoteWords remote;
  uint64_t before = 77;
  for (uint64_t offset : {sizeof(remote.words), sizeof(remote.words) - 7, UINT64_MAX - 7}) {
    EXPECT_EQ(fetch_add<HostAtomics>(remote.memory(), offset, 1, &before), OH_LANE_RANGE);
    EXPECT_EQ(compare_swap<HostAtomics>(remote.memory(), offset, 8, 1, &before), OH_LANE_RANGE);
  }
  EXPECT_EQ(fetch_add<HostAtomics>({remote.address(0), 7}, 0, 1, &before), OH_LANE_RANGE);
  EXPECT_EQ(before, 77u);
  EXPECT_EQ(remote.words[3], 8u);
}

TEST(DeviceAtomicsTest, AnAddressThatIsNoMultipleOf8IsRefused) {
  RemoteWords remote;
  uint64_t before = 77;
  EXPECT_EQ(fetch_add<HostAtomics>(remote.memory(), 4, 1, &before), OH_LANE_MISALIGNED);
  EXPECT_EQ(compare_swap<HostAtomics>(remote.memory(), 1, 5, 1, &before), OH_LANE_MISALIGNED);
  // The alignment of the address matters, not that of the offset.
  const oh_remote_memory slice{remote.address(4), 20};
  EXPECT_EQ(fetch_add<HostAtomics>(slice, 0, 1, &before), OH_LANE_MISALIGNED);
  EXPECT_EQ(before, 77u);
  EXPECT_EQ(fetch_add<HostAtomics>(slice, 4, 1, &before), OH_LANE_OK);
  EXPECT_EQ(before, 6u);
}

// Half of the threads use compare_swap.
TEST(DeviceAtomicsTest, NoneIsLostAmongThreads) {
  constexpr uint64_t kRounds = 2000;
  RemoteWords remote;
  auto run = [&](bool swaps) {
    const oh_remote_memory memory = remote.memory();
    for (uint64_t i = 0; i < kRounds; ++i) {
      if (!swaps) {
        (void)fetch_add<Delayed>(memory, 0, 1, nullptr);
        continue;
      }
      uint64_t seen = 0;
      uint64_t expected = 0;
      do {
        expected = seen;
        (void)compare_swap<Delayed>(memory, 0, expected, expected + 1, &seen);
      } while (seen != expected);
    }
  };
  std::vector<std::thread> threads;
  for (bool swaps : {true, false, true, false}) threads.emplace_back(run, swaps);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(remote.words[0], 5 + 4 * kRounds);
}

}  // namespace
}  // namespace device_atomics_test
