// SPDX-License-Identifier: Apache-2.0
#include "onehop/detail/signal.h"

#include "unit/device_lanes.h"

namespace device_signals_test {
namespace {

using namespace unit;

constexpr uint32_t kSlot = 63;
constexpr uint64_t kShort = 20000;

TEST(DeviceSignalsTest, CountsAreConsumed) {
  TwoSides sides({.timeout_ns = kShort});
  Alone alone;
  const oh_lane_handle ours = sides.handle(0);
  const oh_lane_handle theirs = sides.handle(1);
  EXPECT_TRUE(signal<Delayed>(ours, alone.group, kSlot, 3));
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, kSlot, 2), OH_LANE_OK);
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, kSlot, 1), OH_LANE_OK);
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, kSlot, 0), OH_LANE_OK);
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, kSlot, 1), OH_LANE_TIMEOUT);
  EXPECT_TRUE(signal<Delayed>(ours, alone.group, kSlot, 1));
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, kSlot - 1, 1), OH_LANE_TIMEOUT);
  EXPECT_EQ(wait_signal<Delayed>(ours, alone.group, kSlot, 1), OH_LANE_TIMEOUT);
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, kSlot, 1), OH_LANE_OK);
  EXPECT_EQ(sides.signals(1).taken[kSlot], 4u);
}

TEST(DeviceSignalsTest, AWaitThatGivesUpTakesNothing) {
  TwoSides sides({.timeout_ns = kShort});
  Alone alone;
  const oh_lane_handle theirs = sides.handle(1);
  EXPECT_TRUE(signal<Delayed>(sides.handle(0), alone.group, 5, 3));
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, 5, 1), OH_LANE_OK);
  for (uint64_t count : {uint64_t{3}, UINT64_MAX, UINT64_MAX - 1}) {
    EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, 5, count), OH_LANE_TIMEOUT);
  }
  EXPECT_EQ(sides.signals(1).taken[5], 1u);
  sides.abort(1);
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, 5, 3), OH_LANE_TIMEOUT)
      << "the end of a lane is none of signals";
  HostAtomics::store_release(&sides.signals_notice(1).abort.word, 1);
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, 5, 3), OH_LANE_ABORTED);
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, 5, 2), OH_LANE_OK) << "it need not wait";
  EXPECT_EQ(sides.notice(1).failed[1].fault, OH_LANE_OK) << "signals belong to no lane";
}

// Three ranks, each a group of two threads, in which one thread waits for two ranks if the group
// has only one.
TEST(DeviceSignalsTest, ABarrierOfRanksHoldsAllOfThem) {
  constexpr uint32_t kRanks = 3;
  constexpr uint64_t kRounds = 200;
  for (uint32_t threads : {1u, 2u}) {
    TwoSides pairs[kRanks];  // for the pairs of ranks (0, 1), (0, 2), (1, 2)
    oh_comm_handle comms[kRanks] = {};
    auto join = [&](uint32_t a, uint32_t b, TwoSides& pair) {
      comms[a].ranks[b] = pair.handle(0);
      comms[b].ranks[a] = pair.handle(1);
    };
    join(0, 1, pairs[0]);
    join(0, 2, pairs[1]);
    join(1, 2, pairs[2]);
    std::atomic<uint64_t> reached[kRanks] = {};
    std::atomic<uint64_t> behind{0};
    Crew crews[kRanks] = {Crew({.threads = threads}), Crew({.threads = threads}),
                          Crew({.threads = threads})};
    Threads all;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      comms[rank].rank = rank;
      comms[rank].size = kRanks;
      start_all(all, crews[rank], [&, rank](HostGroup& group) {
        for (uint64_t round = 1; round <= kRounds; ++round) {
          if (group.leads()) reached[rank].store(round, std::memory_order_relaxed);
          EXPECT_EQ(barrier<Delayed>(comms[rank], group, 7), OH_LANE_OK);
          for (const std::atomic<uint64_t>& each : reached) {
            if (each.load(std::memory_order_relaxed) < round) behind.fetch_add(1);
          }
        }
      });
    }
    all.join();
    EXPECT_EQ(behind.load(), 0u);
    EXPECT_EQ(pairs[0].signals(0).taken[7], kRounds);
  }
}

TEST(DeviceSignalsTest, ABarrierEndsWithoutARankThatDoesNotCome) {
  TwoSides pair({.timeout_ns = kShort});
  Alone alone;
  oh_comm_handle comm{.rank = 1, .size = 2, .reserved = 0, .ranks = {}};
  comm.ranks[0] = pair.handle(1);
  EXPECT_EQ(barrier<Delayed>(comm, alone.group, 7), OH_LANE_TIMEOUT);
  HostAtomics::store_release(&pair.signals_notice(1).abort.word, 1);
  EXPECT_EQ(barrier<Delayed>(comm, alone.group, 7), OH_LANE_ABORTED);
  EXPECT_EQ(barrier<Delayed>(comm, alone.group, kSignalSlots), OH_LANE_RANGE);
  comm.size = OH_DEVICE_RANKS + 1;
  EXPECT_EQ(barrier<Delayed>(comm, alone.group, 7), OH_LANE_RANGE);
  comm = {.rank = 0, .size = 1, .reserved = 0, .ranks = {}};
  EXPECT_EQ(barrier<Delayed>(comm, alone.group, 7), OH_LANE_OK);
}

TEST(DeviceSignalsTest, ThereIsNoSuchSlot) {
  TwoSides sides;
  Alone alone;
  EXPECT_FALSE(signal<Delayed>(sides.handle(0), alone.group, kSignalSlots, 1));
  EXPECT_EQ(wait_signal<Delayed>(sides.handle(1), alone.group, kSignalSlots, 1), OH_LANE_RANGE);
}

// Another wait may have taken more than this thread has seen arrive.
TEST(DeviceSignalsTest, MoreTakenThanSeenIsNoSignal) {
  TwoSides sides({.timeout_ns = kShort});
  Alone alone;
  sides.signals(1).arrived[0] = 3;
  sides.signals(1).taken[0] = 5;
  EXPECT_EQ(wait_signal<Delayed>(sides.handle(1), alone.group, 0, 1), OH_LANE_TIMEOUT);
  EXPECT_EQ(sides.signals(1).taken[0], 5u);
}

TEST(DeviceSignalsTest, ReadingAndWaitingUntilTakeNothing) {
  TwoSides sides({.timeout_ns = kShort});
  Alone alone;
  const oh_lane_handle theirs = sides.handle(1);
  uint64_t count = 99;
  EXPECT_EQ(read_signal<Delayed>(theirs, alone.group, kSlot, &count), OH_LANE_OK);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(wait_until_signal<Delayed>(theirs, alone.group, kSlot, 0), OH_LANE_OK);
  EXPECT_EQ(wait_until_signal<Delayed>(theirs, alone.group, kSlot, 1), OH_LANE_TIMEOUT);
  EXPECT_TRUE(signal<Delayed>(sides.handle(0), alone.group, kSlot, 3));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(wait_until_signal<Delayed>(theirs, alone.group, kSlot, 3), OH_LANE_OK);
    EXPECT_EQ(read_signal<Delayed>(theirs, alone.group, kSlot, &count), OH_LANE_OK);
    EXPECT_EQ(count, 3u);
  }
  EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, kSlot, 2), OH_LANE_OK);
  EXPECT_EQ(read_signal<Delayed>(theirs, alone.group, kSlot, &count), OH_LANE_OK);
  EXPECT_EQ(count, 1u) << "a wait has taken the others";
  EXPECT_EQ(wait_until_signal<Delayed>(theirs, alone.group, kSlot, 2), OH_LANE_TIMEOUT);
}

TEST(DeviceSignalsTest, ARelaxedSignalCountsLikeAnyOther) {
  TwoSides sides({.timeout_ns = kShort});
  Alone alone;
  EXPECT_TRUE(relaxed_signal<Delayed>(sides.handle(0), alone.group, kSlot, 3));
  EXPECT_TRUE(signal<Delayed>(sides.handle(0), alone.group, kSlot, 1));
  EXPECT_EQ(wait_signal<Delayed>(sides.handle(1), alone.group, kSlot, 4), OH_LANE_OK);
  EXPECT_FALSE(relaxed_signal<Delayed>(sides.handle(0), alone.group, kSignalSlots, 1));
}

TEST(DeviceSignalsTest, ACountIsSet) {
  TwoSides sides({.timeout_ns = kShort});
  Alone alone;
  const oh_lane_handle theirs = sides.handle(1);
  uint64_t count = 0;
  for (uint64_t value : {uint64_t{7}, uint64_t{3}, UINT64_MAX, uint64_t{0}}) {
    EXPECT_TRUE(set_signal<Delayed>(sides.handle(0), alone.group, 4, value));
    EXPECT_EQ(read_signal<Delayed>(theirs, alone.group, 4, &count), OH_LANE_OK);
    EXPECT_EQ(count, value);
    EXPECT_EQ(wait_until_signal<Delayed>(theirs, alone.group, 4, value), OH_LANE_OK);
  }
  EXPECT_FALSE(set_signal<Delayed>(sides.handle(0), alone.group, kSignalSlots, 1));
}

TEST(DeviceSignalsTest, TheHostEndsLoopsThatRead) {
  TwoSides sides;
  Alone alone;
  const oh_lane_handle theirs = sides.handle(1);
  EXPECT_TRUE(signal<Delayed>(sides.handle(0), alone.group, 5, 2));
  HostAtomics::store_release(&sides.signals_notice(1).abort.word, 1);
  uint64_t count = 0;
  EXPECT_EQ(read_signal<Delayed>(theirs, alone.group, 5, &count), OH_LANE_ABORTED);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(wait_until_signal<Delayed>(theirs, alone.group, 5, 3), OH_LANE_ABORTED);
  EXPECT_EQ(wait_until_signal<Delayed>(theirs, alone.group, 5, 2), OH_LANE_OK)
      << "it need not wait";
  EXPECT_EQ(wait_until_signal<Delayed>(theirs, alone.group, kSignalSlots, 0), OH_LANE_RANGE);
  EXPECT_EQ(read_signal<Delayed>(theirs, alone.group, kSignalSlots, &count), OH_LANE_RANGE);
  EXPECT_EQ(count, 0u);
}

// One signaller, one waiter: a reader never sees more than one signal, since the next one is sent
// after the last one was taken.
TEST(DeviceSignalsTest, AReaderNeverSeesMoreThanThereWas) {
  constexpr uint64_t kRounds = 2000;
  TwoSides sides;
  const oh_lane_handle ours = sides.handle(0);
  const oh_lane_handle theirs = sides.handle(1);
  std::atomic<bool> done{false};
  std::atomic<uint64_t> wrong{0};
  Threads threads;
  threads.start([&] {
    Alone alone;
    for (uint64_t i = 0; i < kRounds; ++i) {
      EXPECT_TRUE(signal<Delayed>(ours, alone.group, 2, 1));
      EXPECT_EQ(wait_signal<Delayed>(ours, alone.group, 3, 1), OH_LANE_OK);
    }
    done = true;
  });
  threads.start([&] {
    Alone alone;
    for (uint64_t i = 0; i < kRounds; ++i) {
      EXPECT_EQ(wait_signal<Delayed>(theirs, alone.group, 2, 1), OH_LANE_OK);
      EXPECT_TRUE(signal<Delayed>(theirs, alone.group, 3, 1));
    }
  });
  threads.start([&] {
    Alone alone;
    while (!done) {
      uint64_t count = 0;
      EXPECT_EQ(read_signal<Delayed>(theirs, alone.group, 2, &count), OH_LANE_OK);
      wrong += count > 1;
    }
  });
  threads.join();
  EXPECT_EQ(wrong.load(), 0u);
}

TEST(DeviceSignalsTest, SeveralWaitersAndSignallersOfASlot) {
  constexpr uint64_t kRounds = 300;
  TwoSides sides;
  const oh_lane_handle ours = sides.handle(0);
  const oh_lane_handle theirs = sides.handle(1);
  Threads threads;
  for (uint64_t count : {1, 2, 3}) {
    threads.start([&theirs, count] {
      Alone alone;
      for (uint64_t i = 0; i < kRounds; ++i) {
        ASSERT_EQ(wait_signal<Delayed>(theirs, alone.group, 2, count), OH_LANE_OK);
      }
    });
  }
  for (int i = 0; i < 2; ++i) {
    threads.start([&ours] {
      Alone alone;
      for (uint64_t k = 0; k < kRounds * 3; ++k) {
        ASSERT_TRUE(signal<Delayed>(ours, alone.group, 2, 1));
      }
    });
  }
  threads.join();
  EXPECT_EQ(sides.signals(1).arrived[2], 6 * kRounds);
  EXPECT_EQ(sides.signals(1).taken[2], 6 * kRounds);
}

// Stores by all threads of a group before a signal are visible to every thread that waited for it.
TEST(DeviceSignalsTest, ASignalComesBehindWhatTheGroupStored) {
  constexpr uint64_t kRounds = 400;
  constexpr uint32_t kThreads = 3;
  TwoSides sides;
  std::vector<uint64_t> data(kThreads);
  std::atomic<uint64_t> wrong{0};
  Threads threads;
  Crew putting({.teams = 1, .threads = kThreads});
  Crew waiting({.teams = 1, .threads = kThreads});
  const oh_lane_handle ours = sides.handle(0);
  const oh_lane_handle theirs = sides.handle(1);
  start_all(threads, putting, [&](HostGroup& group) {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      data[group.rank()] = round;
      ASSERT_TRUE(signal<Delayed>(ours, group, 0, 1));
      ASSERT_EQ(wait_signal<Delayed>(ours, group, 1, 2), OH_LANE_OK);
    }
  });
  start_all(threads, waiting, [&](HostGroup& group) {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      ASSERT_EQ(wait_signal<Delayed>(theirs, group, 0, 1), OH_LANE_OK);
      for (uint64_t value : data) wrong += value != round;
      ASSERT_TRUE(signal<Delayed>(theirs, group, 1, 2));
    }
  });
  threads.join();
  EXPECT_EQ(wrong.load(), 0u);
}

}  // namespace
}  // namespace device_signals_test
