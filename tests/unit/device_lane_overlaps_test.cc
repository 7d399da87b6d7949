// SPDX-License-Identifier: Apache-2.0
//
// Two concurrent operations on a half of a lane, and operations of several teams.
#include <functional>
#include <memory>
#include <utility>

#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "unit/device_lanes.h"

namespace device_lane_overlaps_test {
namespace {

using namespace unit;

constexpr uint8_t kByte = 0x5c;

// Sends over a half that is taken, and receives the message on the other side.
void expect_message(Sender<Delayed>& sender, HostGroup& group, const oh_lane_handle& theirs) {
  const std::vector<uint8_t> source(40, kByte);
  std::vector<uint8_t> target(40);
  sender.send(group, source.data(), 40);
  EXPECT_EQ(sender.give(group), OH_LANE_OK);
  Receiver<Delayed> receiver(theirs, group);
  ASSERT_TRUE(receiver.take(group));
  receiver.receive(group, target.data(), 40);
  EXPECT_EQ(receiver.give(group), OH_LANE_OK);
  EXPECT_EQ(target, source);
}

TEST(DeviceLaneOverlapsTest, TheSecondIsRefusedAndTheFirstGoesOn) {
  TwoSides sides({.epoch = 254, .position = 77});
  const oh_lane_handle lane = sides.handle(0);
  const oh_lane_handle theirs = sides.handle(1);
  Alone alone;
  Sender<Delayed> first(lane, alone.group);
  ASSERT_TRUE(first.take(alone.group));
  Sender<Delayed> second(lane, alone.group);
  EXPECT_FALSE(second.take(alone.group));
  EXPECT_EQ(second.half.fault, OH_LANE_OVERLAP);
  EXPECT_EQ(sides.notice(0).failed[0].fault, OH_LANE_OVERLAP);
  EXPECT_EQ(sides.notice(0).failed[0].position, 77u);
  Sender<Delayed> third(lane, alone.group);
  EXPECT_FALSE(third.take(alone.group));
  EXPECT_EQ(third.half.fault, OH_LANE_FAILED);
  expect_message(first, alone.group, theirs);
  Sender<Delayed> later(lane, alone.group);
  EXPECT_FALSE(later.take(alone.group));
  EXPECT_EQ(later.half.fault, OH_LANE_FAILED);
  EXPECT_EQ(sides.notice(0).failed[0].fault, OH_LANE_OVERLAP) << "the first reason";
  EXPECT_EQ(sides.memory(0).tx.state, make_state(254, 77 + lines_for(40)) | kFailed);

  // The other half of the lane, and the peer, are not affected.
  Sender<Delayed> back(theirs, alone.group);
  ASSERT_TRUE(back.take(alone.group));
  expect_message(back, alone.group, lane);
}

TEST(DeviceLaneOverlapsTest, TheReceivingHalfToo) {
  TwoSides sides;
  const oh_lane_handle lane = sides.handle(1);
  Alone alone;
  Receiver<Delayed> first(lane, alone.group);
  ASSERT_TRUE(first.take(alone.group));
  Receiver<Delayed> second(lane, alone.group);
  EXPECT_FALSE(second.take(alone.group));
  EXPECT_EQ(second.half.fault, OH_LANE_OVERLAP);
  EXPECT_EQ(sides.notice(1).failed[1].fault, OH_LANE_OVERLAP);
  EXPECT_EQ(sides.notice(1).failed[0].fault, OH_LANE_OK);
  Sender<Delayed> sender(lane, alone.group);
  EXPECT_TRUE(sender.take(alone.group)) << "the sending half is another";
  sender.give(alone.group);
}

// Between any two accesses of a rejected kernel, the host may clear all marks, as for a kernel that
// left its own behind, and open the half, and another kernel may take the half.
std::function<void()> g_between;
struct Interrupted : HostAtomics {
  static uint64_t fetch_or_acquire(uint64_t* word, uint64_t bits) {
    const uint64_t old = HostAtomics::fetch_or_acquire(word, bits);
    if (g_between) std::exchange(g_between, nullptr)();
    return old;
  }
};

TEST(DeviceLaneOverlapsTest, WhoIsRefusedTakesBackNoMarkButItsOwn) {
  for (bool opened : {false, true}) {
    TwoSides sides({.epoch = 7, .position = 77});
    const oh_lane_handle lane = sides.handle(0);
    uint64_t* state = &sides.memory(0).tx.state;
    *state |= kFailed;
    Alone alone;
    Sender<Delayed> holder(lane, alone.group);
    g_between = [&] {
      EXPECT_EQ(*state, make_state(7, 77) | kFailed | kBusy);
      if (!opened) return;
      *state = make_state(8, 0);
      EXPECT_TRUE(holder.take(alone.group));
    };
    Sender<Interrupted> refused(lane, alone.group);
    EXPECT_FALSE(refused.take(alone.group));
    EXPECT_EQ(refused.half.fault, OH_LANE_FAILED);
    EXPECT_EQ(*state, opened ? make_state(8, 0) | kBusy : make_state(7, 77) | kFailed);
  }
}

TEST(DeviceLaneOverlapsTest, AnotherTokenIsAnotherOperation) {
  for (uint32_t token : {2u, 0u}) {
    TwoSides sides;
    const oh_lane_handle ours = sides.handle(0, 1);
    const oh_lane_handle theirs = sides.handle(0, token);
    Crew crew({.teams = 2});
    HostGroup first(crew, 0);
    HostGroup second(crew, 1);
    Sender<Delayed> one(ours, first);
    ASSERT_TRUE(one.take(first));
    Crew other({.teams = token == 0 ? 1u : 2u});
    HostGroup stranger(other, 0);
    Sender<Delayed> two(theirs, stranger);
    EXPECT_FALSE(two.take(stranger));
    EXPECT_EQ(two.half.fault, OH_LANE_OVERLAP);
    EXPECT_EQ(sides.notice(0).failed[0].fault, OH_LANE_OVERLAP);
    Sender<Delayed> joins(ours, second);
    EXPECT_FALSE(joins.take(second)) << "its operation has failed";
    EXPECT_EQ(joins.half.fault, OH_LANE_FAILED);
  }
}

// An operation of several teams while an operation of a single team holds the half: no team gets
// it.
TEST(DeviceLaneOverlapsTest, NoTeamJoinsAnOperationThatWasRefused) {
  for (int round = 0; round < 300; ++round) {
    TwoSides sides;
    const oh_lane_handle lane = sides.handle(0);
    const oh_lane_handle joint = sides.handle(0, 8);
    Alone alone;
    Sender<Delayed> holder(lane, alone.group);
    ASSERT_TRUE(holder.take(alone.group));
    Crew crew({.teams = 3});
    Threads threads;
    start_all(threads, crew, [&](HostGroup& group) {
      Sender<Delayed> sender(joint, group);
      EXPECT_FALSE(sender.take(group));
      EXPECT_THAT(sender.half.fault, ::testing::AnyOf(OH_LANE_OVERLAP, OH_LANE_FAILED));
    });
    threads.join();
    EXPECT_EQ(sides.memory(0).tx.owner, 0u);
    EXPECT_EQ(sides.notice(0).failed[0].fault, OH_LANE_OVERLAP);
    expect_message(holder, alone.group, sides.handle(1));
  }
}

// A team does not take part before the first team owns the half.
TEST(DeviceLaneOverlapsTest, ATeamWaitsForTheFirstOne) {
  TwoSides sides;
  const oh_lane_handle joint = sides.handle(0, 8);
  const uint8_t source[16] = {};
  std::atomic<bool> begun{false};
  std::atomic<bool> taken{false};
  Crew crew({.teams = 2});
  auto run = [&](uint32_t rank) {
    HostGroup group(crew, rank);
    Sender<Delayed> sender(joint, group);
    begun = true;
    if (rank == 0) taken = true;
    ASSERT_TRUE(sender.take_for(group, UINT64_MAX));
    EXPECT_TRUE(taken.load());
    sender.send(group, source, 16, true);
    EXPECT_EQ(sender.give(group), OH_LANE_OK);
  };
  Threads threads;
  threads.start([&] { run(1); });
  wait_until([&] { return begun.load(); });
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  run(0);
  threads.join();
  EXPECT_EQ(sides.memory(0).tx.state, make_state(1, lines_for(16)));
}

// Consecutive launches with any number of teams and any token, on both halves at once.
TEST(DeviceLaneOverlapsTest, OperationsOfSeveralTeamsFollowEachOther) {
  TwoSides sides({.ring_shift = 6, .small_max = 300});
  for (uint32_t round = 1; round <= 150; ++round) {
    const uint64_t size = round % 3 == 0 ? 5000 : round;
    const std::vector<uint8_t> source(size, static_cast<uint8_t>(round));
    std::vector<uint8_t> targets[2] = {std::vector<uint8_t>(size), std::vector<uint8_t>(size)};
    Threads threads;
    std::vector<std::unique_ptr<Crew>> crews;
    std::vector<oh_lane_handle> lanes(2);
    for (int side : {0, 1}) {
      lanes[side] = sides.handle(side, round % 2 == 0 ? round : 7);
      const oh_lane_handle& lane = lanes[side];
      crews.push_back(std::make_unique<Crew>(Shape{1 + round % 4, 1 + round % 2}));
      start_all(threads, *crews.back(), [&](HostGroup& group) {
        Sender<Delayed> sender(lane, group);
        ASSERT_TRUE(sender.take_for(group, UINT64_MAX));
        sender.send(group, source.data(), size, true);
        EXPECT_EQ(sender.give(group), OH_LANE_OK);
      });
      crews.push_back(std::make_unique<Crew>(Shape{1 + round % 3, 1}));
      start_all(threads, *crews.back(), [&, side](HostGroup& group) {
        Receiver<Delayed> receiver(lane, group);
        ASSERT_TRUE(receiver.take(group));
        receiver.receive(group, targets[side].data(), size);
        EXPECT_EQ(receiver.give(group), OH_LANE_OK);
      });
    }
    threads.join();
    for (const std::vector<uint8_t>& target : targets) ASSERT_EQ(target, source) << round;
  }
}

// Chunk cursors as ordinary memory, so that ThreadSanitizer detects missing ordering.
struct PlainCursors : Delayed {
  static inline LaneHalf* halves[2] = {};
  static bool is_cursor(const uint64_t* word) {
    return word == &halves[0]->chunks || word == &halves[1]->chunks;
  }
  static uint64_t load_relaxed(const uint64_t* from) {
    return is_cursor(from) ? *from : Delayed::load_relaxed(from);
  }
  static void store_relaxed(uint64_t* to, uint64_t value) {
    is_cursor(to) ? void(*to = value) : Delayed::store_relaxed(to, value);
  }
};

// Operations of one launch on both sides; each team continues with the next one by itself.
TEST(DeviceLaneOverlapsTest, AChainHandsOnTheCursorOfChunks) {
  constexpr uint32_t kOps = 4;
  constexpr uint64_t kSize = 300;
  const std::vector<uint8_t> source(kSize, kByte);
  for (int round = 0; round < 60; ++round) {
    TwoSides sides({.small_max = 16});
    PlainCursors::halves[0] = &sides.memory(0).tx;
    PlainCursors::halves[1] = &sides.memory(1).rx;
    auto handle = [&](int side, uint32_t k) {
      oh_lane_handle lane = sides.handle(side, k + 1);
      lane.follows = k;
      return lane;
    };
    std::vector<std::vector<uint8_t>> targets(kOps, std::vector<uint8_t>(kSize));
    Crew senders({.teams = 3});
    Crew receivers({.teams = 2});
    Threads threads;
    start_all(threads, senders, [&](HostGroup& group) {
      for (uint32_t k = 0; k < kOps; ++k) {
        const oh_lane_handle lane = handle(0, k);
        Sender<PlainCursors> sender(lane, group);
        ASSERT_TRUE(sender.take_for(group, UINT64_MAX)) << k;
        sender.send(group, source.data(), k == 1 ? 8 : kSize, true);
        EXPECT_EQ(sender.give(group), OH_LANE_OK);
      }
    });
    start_all(threads, receivers, [&](HostGroup& group) {
      for (uint32_t k = 0; k < kOps; ++k) {
        const oh_lane_handle lane = handle(1, k);
        Receiver<PlainCursors> receiver(lane, group);
        ASSERT_TRUE(receiver.take(group)) << k;
        receiver.receive(group, targets[k].data(), kSize, {}, true);
        EXPECT_EQ(receiver.give(group), OH_LANE_OK);
      }
    });
    threads.join();
    const uint64_t chunks = (kOps - 1) * ((kSize + 63) / 64);
    EXPECT_EQ(sides.memory(0).tx.chunks, chunks);
    EXPECT_EQ(sides.memory(1).rx.chunks, chunks);
    for (uint32_t k = 0; k < kOps; ++k) {
      EXPECT_TRUE(
          std::equal(source.begin(), source.begin() + (k == 1 ? 8 : kSize), targets[k].begin()))
          << k;
    }
  }
}

// Several launches use a half concurrently: every message that was sent arrives, and every rejected
// operation gets an error.
TEST(DeviceLaneOverlapsTest, ManyAtOnceFindEachOther) {
  for (int round = 0; round < 100; ++round) {
    TwoSides sides({.ring_shift = 7});
    const oh_lane_handle lane = sides.handle(0);
    std::atomic<uint64_t> sent{0};
    std::atomic<uint64_t> refused{0};
    Threads threads;
    for (int i = 0; i < 4; ++i) {
      threads.start([&] {
        Alone alone;
        const uint8_t source[16] = {};
        Sender<Delayed> sender(lane, alone.group);
        if (!sender.take(alone.group)) {
          ++refused;
          return;
        }
        sender.send(alone.group, source, 16);
        EXPECT_EQ(sender.give(alone.group), OH_LANE_OK);
        ++sent;
      });
    }
    threads.join();
    EXPECT_GE(sent.load(), 1u);
    EXPECT_EQ(sent + refused, 4u);
    const uint64_t failed = refused > 0 ? kFailed : 0;
    EXPECT_EQ(sides.memory(0).tx.state, make_state(1, sent * lines_for(16)) | failed);
  }
}

}  // namespace
}  // namespace device_lane_overlaps_test
