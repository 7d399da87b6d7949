// SPDX-License-Identifier: Apache-2.0
//
// Operations of a grid: its blocks are teams, which continue with the next operation without a
// grid-wide barrier.
#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "onehop/detail/team_signal.h"
#include "unit/device_lanes.h"

namespace device_grid_test {
namespace {

using namespace unit;

constexpr uint64_t kShort = 20'000'000;
constexpr Shape kGrid{.teams = 3, .threads = 2};

// As GridGroup::next() does.
oh_lane_handle of_grid(oh_lane_handle lane, uint64_t launch, uint32_t number) {
  lane.token = grid_token(launch, number);
  lane.follows = grid_follows(launch);
  return lane;
}

TEST(DeviceGridTest, TokensOfGridsAndOfStreamsDiffer) {
  EXPECT_TRUE(is_of_grid(grid_token(0, 0)));
  EXPECT_FALSE(is_of_grid(kGridToken - 1));
  EXPECT_TRUE(is_before(grid_token(5, 1), grid_follows(5)));
  EXPECT_TRUE(is_before(grid_follows(5), grid_follows(5)));
  EXPECT_FALSE(is_before(grid_token(6, 1), grid_follows(5)));
  EXPECT_FALSE(is_before(5, grid_follows(5)));
  EXPECT_TRUE(is_before(5, 5));
  EXPECT_FALSE(is_before(6, 5));
  for (uint32_t number = 0; number < 70000; ++number) {
    ASSERT_NE(grid_token(5, number), grid_token(5, number + 1));
    ASSERT_NE(grid_token(5, number), grid_follows(5));
  }
}

std::vector<uint8_t> bytes_of(uint32_t message, uint64_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint64_t i = 0; i < size; ++i)
    bytes[i] = static_cast<uint8_t>(message * 31 + i * 7 + i / 256);
  return bytes;
}

// Small and large messages, one after the other, in launches of different numbers of blocks.
TEST(DeviceGridTest, MessagesFollowEachOtherWithoutABarrierOfTheGrid) {
  constexpr uint32_t kLaunches = 6;
  constexpr uint64_t kSizes[] = {8, 0, 300, 3000, 40, 5000, 1, 9000, 64, 2000};
  Geometry geometry{.ring_shift = 6};
  geometry.chunk_shift = 8;
  TwoSides sides(geometry);
  for (uint32_t launch = 0; launch < kLaunches; ++launch) {
    std::vector<std::vector<uint8_t>> sources;
    std::vector<std::vector<uint8_t>> targets;
    for (uint64_t size : kSizes) {
      sources.push_back(bytes_of(launch * 100 + static_cast<uint32_t>(sources.size()), size));
      targets.emplace_back(size, 0xee);
    }
    Crew sending({.teams = 2 + launch % 3, .threads = 2});
    Crew receiving({.teams = 4 - launch % 3, .threads = 2});
    Threads threads;
    start_all(threads, sending, [&](HostGroup& group) {
      for (uint32_t i = 0; i < sources.size(); ++i) {
        const oh_lane_handle lane = of_grid(sides.handle(0), launch, i + 1);
        Sender<Delayed> sender(lane, group);
        ASSERT_TRUE(sender.take_for(group, sources[i].size())) << sender.half.fault;
        sender.send(group, sources[i].data(), sources[i].size(), true);
        ASSERT_EQ(sender.give(group), OH_LANE_OK);
      }
    });
    start_all(threads, receiving, [&](HostGroup& group) {
      for (uint32_t i = 0; i < targets.size(); ++i) {
        const oh_lane_handle lane = of_grid(sides.handle(1), launch, i + 1);
        Receiver<Delayed> receiver(lane, group);
        ASSERT_TRUE(receiver.take(group)) << receiver.half.fault;
        receiver.receive(group, targets[i].data(), targets[i].size(), {}, true);
        EXPECT_EQ(receiver.length, targets[i].size());
        ASSERT_EQ(receiver.give(group), OH_LANE_OK);
      }
    });
    threads.join();
    EXPECT_EQ(targets, sources) << "launch " << launch;
    for (const LaneHalf* half : {&sides.memory(0).tx, &sides.memory(1).rx}) {
      EXPECT_EQ(half->owner >> 32, grid_follows(launch)) << "the same token may come again";
      EXPECT_EQ(half->state & (kBusy | kFailed), 0u);
    }
  }
}

TEST(DeviceGridTest, ALaunchBesideItIsFoundOut) {
  TwoSides sides({.timeout_ns = kShort});
  Alone alone;
  const oh_lane_handle plain = sides.handle(0);
  Sender<Delayed> holder(plain, alone.group);
  ASSERT_TRUE(holder.take(alone.group));
  sides.memory(0).tx.owner = static_cast<uint64_t>(grid_token(7, 1)) << 32 | kJoined;
  const oh_lane_handle lane = of_grid(sides.handle(0), 8, 1);
  Sender<Delayed> second(lane, alone.group);
  EXPECT_FALSE(second.take(alone.group));
  EXPECT_EQ(second.half.fault, OH_LANE_OVERLAP);
}

// The waiter of each round sees everything that all teams have stored before the signal.
TEST(DeviceGridTest, ASignalComesOnceBehindWhatAllTeamsStored) {
  constexpr uint32_t kRounds = 300;
  TwoSides sides;
  Crew putting(kGrid);
  const oh_lane_handle theirs = sides.handle(1);
  const uint32_t all = kGrid.teams * kGrid.threads;
  std::vector<std::vector<uint64_t>> data(kRounds, std::vector<uint64_t>(all));
  std::atomic<uint64_t> wrong{0};
  Threads threads;
  start_all(threads, putting, [&](HostGroup& group) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      data[round][group.rank()] = round + 1;
      const oh_lane_handle ours = of_grid(sides.handle(0), 3, round + 1);
      ASSERT_EQ(signal_by_teams<Delayed>(ours, group, 9, 2), OH_LANE_OK);
    }
  });
  threads.start([&] {
    Alone alone;
    for (uint32_t round = 0; round < kRounds; ++round) {
      ASSERT_EQ(wait_signal<Delayed>(theirs, alone.group, 9, 2), OH_LANE_OK);
      for (uint64_t value : data[round]) wrong += value != round + 1;
    }
  });
  threads.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(sides.signals(1).arrived[9], 2 * kRounds);
  EXPECT_EQ(sides.signals(0).teams[9], 0u);
}

// A block of the previous launch has left early: its count must not carry over to this launch.
TEST(DeviceGridTest, ASignalLeftUndoneIsBegunAnew) {
  TwoSides sides({.timeout_ns = kShort});
  sides.signals(0).teams[9] = static_cast<uint64_t>(grid_token(3, 1)) << 32 | (kGrid.teams - 1);
  Crew putting(kGrid);
  Threads threads;
  start_all(threads, putting, [&](HostGroup& group) {
    if (group.team() == 0) {
      while (HostAtomics::load_relaxed(&sides.signals(0).teams[9]) !=
             (static_cast<uint64_t>(grid_token(4, 1)) << 32 | (kGrid.teams - 1))) {
        std::this_thread::yield();
      }
      EXPECT_EQ(HostAtomics::load_relaxed(&sides.signals(1).arrived[9]), 0u);
    }
    EXPECT_EQ(signal_by_teams<Delayed>(of_grid(sides.handle(0), 4, 1), group, 9, 1), OH_LANE_OK);
  });
  threads.join();
  EXPECT_EQ(sides.signals(1).arrived[9], 1u);
}

TEST(DeviceGridTest, AWaitForTeamsThatDoNotComeEnds) {
  TwoSides sides({.timeout_ns = kShort});
  Crew putting(kGrid);
  Threads threads;
  start_all(threads, putting, [&](HostGroup& group) {
    if (group.team() != 0) return;
    EXPECT_EQ(signal_by_teams<Delayed>(of_grid(sides.handle(0), 4, 1), group, 9, 1), OH_LANE_OK)
        << "the last to come signals, no other waits";
    EXPECT_EQ(signal_by_teams<Delayed>(of_grid(sides.handle(0), 4, 2), group, 9, 1),
              OH_LANE_TIMEOUT);
    EXPECT_EQ(signal_by_teams<Delayed>(of_grid(sides.handle(0), 4, 3), group, kSignalSlots, 1),
              OH_LANE_RANGE);
  });
  threads.join();
  EXPECT_EQ(sides.signals(1).arrived[9], 0u);
}

// All teams of each round return after its signal, which is consumed once. They continue with the
// next wait without a barrier in between.
TEST(DeviceGridTest, AWaitByAllTeamsTakesItsSignalOnce) {
  constexpr uint32_t kRounds = 300;
  TwoSides sides;
  Crew waiting(kGrid);
  std::vector<uint64_t> data(kRounds);
  std::atomic<uint64_t> wrong{0};
  Threads threads;
  start_all(threads, waiting, [&](HostGroup& group) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      const oh_lane_handle ours = of_grid(sides.handle(0), 3, round + 1);
      ASSERT_EQ(wait_by_teams<Delayed>(ours, group, 9, 2), OH_LANE_OK);
      wrong += data[round] != round + 1;
    }
  });
  threads.start([&] {
    Alone alone;
    for (uint32_t round = 0; round < kRounds; ++round) {
      data[round] = round + 1;
      ASSERT_TRUE(signal<Delayed>(sides.handle(1), alone.group, 9, 2));
    }
  });
  threads.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(sides.signals(0).taken[9], 2 * kRounds);
  EXPECT_EQ(sides.signals(0).waits[9], 0u);
}

// Waits by grids and by a team of another kernel each consume their own part of the same count.
TEST(DeviceGridTest, AWaitByAllTeamsSharesItsSlotWithWaitsOfOneTeam) {
  constexpr uint32_t kRounds = 100;
  TwoSides sides;
  Crew waiting(kGrid);
  Threads threads;
  start_all(threads, waiting, [&](HostGroup& group) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      const oh_lane_handle ours = of_grid(sides.handle(0), 3, round + 1);
      ASSERT_EQ(wait_by_teams<Delayed>(ours, group, 9, 1), OH_LANE_OK);
    }
  });
  threads.start([&] {
    Alone alone;
    for (uint32_t round = 0; round < kRounds; ++round) {
      ASSERT_EQ(wait_signal<Delayed>(sides.handle(0), alone.group, 9, 1), OH_LANE_OK);
    }
  });
  threads.start([&] {
    Alone alone;
    for (uint32_t i = 0; i < 2 * kRounds; ++i) {
      ASSERT_TRUE(signal<Delayed>(sides.handle(1), alone.group, 9, 1));
    }
  });
  threads.join();
  EXPECT_EQ(sides.signals(0).taken[9], 2 * kRounds);
}

// The slot's state is as before, for the same launch (a graph's replays are one launch) and for
// others.
TEST(DeviceGridTest, AWaitThatEndsIsOverForAllTeamsAlike) {
  TwoSides sides({.timeout_ns = kShort});
  Alone alone;
  auto wait_by_all = [&](uint32_t launch, uint64_t count, uint32_t expected) {
    Crew waiting(kGrid);
    Threads threads;
    start_all(threads, waiting, [&](HostGroup& group) {
      const oh_lane_handle ours = of_grid(sides.handle(0), launch, 1);
      EXPECT_EQ(wait_by_teams<Delayed>(ours, group, 9, count), expected);
      EXPECT_EQ(wait_by_teams<Delayed>(ours, group, kSignalSlots, count), OH_LANE_RANGE);
    });
    threads.join();
    EXPECT_EQ(sides.signals(0).waits[9], 0u);
  };
  EXPECT_TRUE(signal<Delayed>(sides.handle(1), alone.group, 9, 1));
  wait_by_all(4, 2, OH_LANE_TIMEOUT);
  EXPECT_EQ(sides.signals(0).taken[9], 0u) << "a wait that ends takes nothing";
  EXPECT_TRUE(signal<Delayed>(sides.handle(1), alone.group, 9, 1));
  wait_by_all(4, 2, OH_LANE_OK);
  HostAtomics::store_release(&sides.signals_notice(0).abort.word, 1);
  wait_by_all(5, 1, OH_LANE_ABORTED);
}

// A launch that ended with its context has left an unfinished wait behind.
TEST(DeviceGridTest, AWaitLeftUndoneIsBegunAnew) {
  TwoSides sides;
  Alone alone;
  sides.signals(0).waits[9] = static_cast<uint64_t>(grid_token(3, 1)) << 32 | kWaitBegun | 1;
  EXPECT_TRUE(signal<Delayed>(sides.handle(1), alone.group, 9, 1));
  Crew waiting(kGrid);
  Threads threads;
  start_all(threads, waiting, [&](HostGroup& group) {
    const oh_lane_handle ours = of_grid(sides.handle(0), 4, 1);
    EXPECT_EQ(wait_by_teams<Delayed>(ours, group, 9, 1), OH_LANE_OK);
  });
  threads.join();
  EXPECT_EQ(sides.signals(0).waits[9], 0u);
}

// Two concurrent launches wait on one slot: the first detects that the other has begun.
TEST(DeviceGridTest, AWaitOfAnotherLaunchBesideItIsFoundOut) {
  TwoSides sides({.timeout_ns = kShort});
  Crew waiting({.teams = 2, .threads = 1});
  uint64_t* word = &sides.signals(0).waits[9];
  Threads threads;
  start_all(threads, waiting, [&](HostGroup& group) {
    const oh_lane_handle ours = of_grid(sides.handle(0), 4, 1);
    if (group.team() == 0) {
      EXPECT_EQ(wait_by_teams<Delayed>(ours, group, 9, 1), OH_LANE_OVERLAP);
      return;
    }
    const uint64_t begun = static_cast<uint64_t>(grid_token(4, 1)) << 32 | kWaitBegun;
    while (HostAtomics::load_relaxed(word) != begun) std::this_thread::yield();
    HostAtomics::store_release(word, static_cast<uint64_t>(grid_token(8, 1)) << 32 | kWaitBegun);
  });
  threads.join();
}

TEST(DeviceGridTest, AWaitBehindOneThatIsNotOverEnds) {
  TwoSides sides({.timeout_ns = kShort});
  Alone alone;
  EXPECT_TRUE(signal<Delayed>(sides.handle(1), alone.group, 9, 5));
  Crew waiting(kGrid);
  Threads threads;
  start_all(threads, waiting, [&](HostGroup& group) {
    if (group.team() != 0) return;
    EXPECT_EQ(wait_by_teams<Delayed>(of_grid(sides.handle(0), 4, 1), group, 9, 1), OH_LANE_OK);
    EXPECT_EQ(wait_by_teams<Delayed>(of_grid(sides.handle(0), 4, 2), group, 9, 1), OH_LANE_TIMEOUT);
  });
  threads.join();
  EXPECT_EQ(sides.signals(0).taken[9], 1u);
}

}  // namespace
}  // namespace device_grid_test
