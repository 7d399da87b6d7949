// SPDX-License-Identifier: Apache-2.0
//
// A probe for an arrived message: it never waits, and leaves the message for its receive.
#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "unit/device_lanes.h"

namespace device_probe_test {
namespace {

using namespace unit;

constexpr uint64_t kSizes[] = {0, 1, 8, 9, 40, 200, 5000, 3};

void send_one(HostGroup& group, const oh_lane_handle& lane, uint64_t size) {
  const std::vector<uint8_t> source(size, static_cast<uint8_t>(size));
  Sender<Delayed> sender(lane, group);
  ASSERT_TRUE(sender.take(group));
  sender.send(group, source.data(), size);
  EXPECT_EQ(sender.give(group), OH_LANE_OK);
}

// Small and large messages, each sent after the previous one has arrived.
TEST(DeviceProbeTest, AGroupFindsEachMessageAndItsSize) {
  TwoSides sides;
  const oh_lane_handle ours = sides.handle(0);
  const oh_lane_handle theirs = sides.handle(1);
  Crew receiving({.teams = 1, .threads = 3});
  std::atomic<uint64_t> early{0};
  std::vector<uint8_t> target(8192);
  Threads threads;
  threads.start([&] {
    Alone alone;
    for (uint64_t size : kSizes) {
      EXPECT_EQ(wait_signal<Delayed>(ours, alone.group, 0, 1), OH_LANE_OK);
      send_one(alone.group, ours, size);
    }
  });
  start_all(threads, receiving, [&](HostGroup& group) {
    Receiver<Delayed> receiver(theirs, group);
    ASSERT_TRUE(receiver.take(group));
    for (uint64_t size : kSizes) {
      early += receiver.probe(group, true);
      ASSERT_TRUE(signal<Delayed>(theirs, group, 0, 1));
      while (!receiver.probe(group, false)) std::this_thread::yield();
      EXPECT_EQ(receiver.length, size);
      EXPECT_TRUE(receiver.probe(group, true)) << "it stays until it is received";
      receiver.receive(group, target.data(), target.size());
      EXPECT_EQ(receiver.length, size);
      group.sync();
      for (uint64_t i = 0; i < size; ++i) ASSERT_EQ(target[i], static_cast<uint8_t>(size));
      group.sync();
    }
    EXPECT_EQ(receiver.give(group), OH_LANE_OK);
  });
  threads.join();
  EXPECT_EQ(early.load(), 0u);
}

TEST(DeviceProbeTest, AMessageThatWasFoundIsLeftToTheNextHolder) {
  TwoSides sides;
  Alone alone;
  const oh_lane_handle theirs = sides.handle(1);
  send_one(alone.group, sides.handle(0), 24);
  for (int i = 0; i < 2; ++i) {
    Receiver<Delayed> looking(theirs, alone.group);
    ASSERT_TRUE(looking.take(alone.group));
    EXPECT_TRUE(looking.probe(alone.group, true));
    EXPECT_EQ(looking.give(alone.group), OH_LANE_OK);
  }
  std::vector<uint8_t> target(24);
  Receiver<Delayed> receiver(theirs, alone.group);
  ASSERT_TRUE(receiver.take(alone.group));
  receiver.receive(alone.group, target.data(), target.size());
  EXPECT_EQ(receiver.give(alone.group), OH_LANE_OK);
  EXPECT_EQ(target, std::vector<uint8_t>(24, 24));
}

TEST(DeviceProbeTest, TheHostEndsALoopThatLooks) {
  constexpr uint32_t kThreads = 3;
  TwoSides sides;
  Crew crew({.teams = 1, .threads = kThreads});
  const oh_lane_handle theirs = sides.handle(1);
  sides.abort(1);
  Threads threads;
  start_all(threads, crew, [&](HostGroup& group) {
    Receiver<Delayed> receiver(theirs, group);
    ASSERT_TRUE(receiver.take(group));
    EXPECT_FALSE(receiver.probe(group, false));
    EXPECT_FALSE(receiver.half.is_broken()) << "it did not look at the host's word";
    EXPECT_FALSE(receiver.probe(group, true));
    EXPECT_EQ(receiver.half.fault, OH_LANE_ABORTED) << "every thread is told";
    EXPECT_FALSE(receiver.probe(group, true));
    EXPECT_EQ(receiver.give(group), OH_LANE_ABORTED);
  });
  threads.join();
  EXPECT_EQ(sides.notice(1).failed[1].fault, OH_LANE_ABORTED);
  EXPECT_EQ(sides.memory(1).rx.state, make_state(1, 0) | kFailed);
}

// The fault of the previous receive is cleared: a loop that checks both continues.
TEST(DeviceProbeTest, AFaultOfTheReceiveBeforeIsOver) {
  TwoSides sides;
  Alone alone;
  const oh_lane_handle ours = sides.handle(0);
  const oh_lane_handle theirs = sides.handle(1);
  send_one(alone.group, ours, 24);
  Receiver<Delayed> receiver(theirs, alone.group);
  ASSERT_TRUE(receiver.take(alone.group));
  uint8_t into[8];
  receiver.receive(alone.group, into, sizeof(into));
  EXPECT_EQ(receiver.half.fault, OH_LANE_TRUNCATED);
  EXPECT_FALSE(receiver.probe(alone.group, true));
  EXPECT_EQ(receiver.half.fault, OH_LANE_OK);
  EXPECT_EQ(receiver.give(alone.group), OH_LANE_OK);
}

// The receive, not the probe, detects lengths that no sender writes.
TEST(DeviceProbeTest, ALengthAsLargeAsItCanBe) {
  TwoSides sides;
  Alone alone;
  const oh_lane_handle theirs = sides.handle(1);
  const LineRing ring{reinterpret_cast<Pair*>(theirs.mine + theirs.lines_at), theirs.ring_shift, 1};
  store_line<HostAtomics>(line_at(ring, 0),
                          {{kAnnounced << 30, ~0u, ~0u}, flag_at(1, ring.shift, 0)});
  Receiver<Delayed> receiver(theirs, alone.group);
  ASSERT_TRUE(receiver.take(alone.group));
  EXPECT_TRUE(receiver.probe(alone.group, true));
  EXPECT_EQ(receiver.length, (uint64_t{1} << 55) - 1);
  EXPECT_EQ(receiver.give(alone.group), OH_LANE_OK);
}

}  // namespace
}  // namespace device_probe_test
