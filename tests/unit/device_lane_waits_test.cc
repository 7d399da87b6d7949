// SPDX-License-Identifier: Apache-2.0
//
// Every wait of an operation on a lane ends, with the right fault.
#include <algorithm>

#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "unit/device_lanes.h"

namespace device_lane_waits_test {
namespace {

using namespace unit;

constexpr uint64_t kLarge = 1000;
constexpr uint64_t kSmall = 40;

uint32_t send_one(HostGroup& group, const oh_lane_handle& lane, uint64_t size) {
  const std::vector<uint8_t> source(size + 16, 7);
  Sender<Delayed> sender(lane, group);
  if (!sender.take(group)) return sender.half.fault;
  sender.send(group, source.data(), size);
  sender.give(group);
  return sender.half.fault;
}
// Sends one message that nobody writes any more: each thread waits for its own share's room.
uint32_t send_settled(HostGroup& group, const oh_lane_handle& lane, uint64_t size) {
  const std::vector<uint8_t> source(size + 16, 7);
  Sender<Delayed> sender(lane, group);
  if (!sender.take_for(group, size)) return sender.half.fault;
  sender.send(group, source.data(), size, true);
  sender.give(group);
  return sender.half.fault;
}
// Receives one message; the target must be unchanged if the receive fails.
uint32_t receive_one(HostGroup& group, const oh_lane_handle& lane, uint64_t capacity) {
  std::vector<uint8_t> target(capacity + 16);
  Receiver<Delayed> receiver(lane, group);
  if (!receiver.take(group)) return receiver.half.fault;
  receiver.receive(group, target.data(), capacity);
  receiver.give(group);
  return receiver.half.fault;
}

// Receives as a kernel of a stream does: its threads do not vote. Returns the fault of the half.
uint32_t finish_one(HostGroup& group, const oh_lane_handle& lane, uint64_t capacity) {
  std::vector<uint8_t> target(capacity + 16);
  Receiver<Delayed> receiver(lane, group);
  const bool taken = receiver.take(group);
  if (taken) {
    receiver.receive<false>(group, target.data(), capacity, {}, true);
    receiver.finish(group);
  }
  group.launch_ends();
  return taken ? notice(lane)->failed[1].fault : receiver.half.fault;
}

void store_at(const oh_lane_handle& receiver, uint64_t position, Line line) {
  const LineRing ring{reinterpret_cast<Pair*>(receiver.mine + receiver.lines_at),
                      receiver.ring_shift, 1};
  line.flag = flag_at(1, ring.shift, position);
  store_line<HostAtomics>(line_at(ring, position), line);
}
void announce(TwoSides& sides, uint64_t size) {
  store_at(sides.handle(1), 0, {{kAnnounced << 30, static_cast<uint32_t>(size), 0}, 0});
}
// The head of a small message, and the first of its other lines.
void store_two_lines(TwoSides& sides) {
  store_at(sides.handle(1), 0, {{static_cast<uint32_t>(kSmall), 1, 2}, 0});
  store_at(sides.handle(1), 1, {{1, 2, 3}, 0});
}
// Sends messages without receiving any, until the ring is full.
void fill_ring(TwoSides& sides) {
  Alone alone;
  const oh_lane_handle lane = sides.handle(0);
  for (uint64_t i = 0; i < lines_of(lane); ++i) {
    ASSERT_EQ(send_one(alone.group, lane, 8), OH_LANE_OK);
  }
}

// Side 0 sends and side 1 receives; one of them waits.
struct Wait {
  const char* name;
  int side;
  void (*prepare)(TwoSides&);
  uint32_t (*run)(HostGroup&, const oh_lane_handle&);
  bool stores = false;  // whether it stores before it waits
};
void PrintTo(const Wait& wait, std::ostream* stream) { *stream << wait.name; }

const Wait kWaits[] = {
    {"RoomOfASmallMessage", 0, fill_ring,
     [](HostGroup& group, const oh_lane_handle& lane) { return send_one(group, lane, kSmall); }},
    {"RoomOfALargeMessage", 0, fill_ring,
     [](HostGroup& group, const oh_lane_handle& lane) { return send_one(group, lane, kLarge); }},
    {"RoomOfASettledMessage", 0, fill_ring,
     [](HostGroup& group, const oh_lane_handle& lane) {
       return send_settled(group, lane, kSmall);
     }},
    {"RoomOfALargeSettledMessage", 0, fill_ring,
     [](HostGroup& group, const oh_lane_handle& lane) {
       return send_settled(group, lane, kLarge);
     }},
    {"Posting", 0, [](TwoSides&) {},
     [](HostGroup& group, const oh_lane_handle& lane) { return send_one(group, lane, kLarge); },
     true},
    {"ChunkToBeEmptied", 0,
     [](TwoSides& sides) { post<HostAtomics>(sides.memory(0).posted, 1, 0, {{}, kLarge}); },
     [](HostGroup& group, const oh_lane_handle& lane) { return send_one(group, lane, kLarge); },
     true},
    {"Head", 1, [](TwoSides&) {},
     [](HostGroup& group, const oh_lane_handle& lane) { return receive_one(group, lane, kSmall); }},
    {"Body", 1, store_two_lines,
     [](HostGroup& group, const oh_lane_handle& lane) { return receive_one(group, lane, kSmall); }},
    {"HeadInAStream", 1, [](TwoSides&) {},
     [](HostGroup& group, const oh_lane_handle& lane) { return finish_one(group, lane, kSmall); }},
    {"BodyInAStream", 1, store_two_lines,
     [](HostGroup& group, const oh_lane_handle& lane) { return finish_one(group, lane, kSmall); }},
    {"EndingInAStream", 1, [](TwoSides& sides) { announce(sides, kLarge); },
     [](HostGroup& group, const oh_lane_handle& lane) { return finish_one(group, lane, kSmall); },
     true},
    {"Ending", 1, [](TwoSides& sides) { announce(sides, kLarge); },
     [](HostGroup& group, const oh_lane_handle& lane) { return receive_one(group, lane, kLarge); },
     true},
    {"ChunkToBeFilled", 1,
     [](TwoSides& sides) {
       announce(sides, kLarge);
       store_at(sides.handle(1), 1, {{kEnded << 30 | kStaged, 0, 0}, 0});
     },
     [](HostGroup& group, const oh_lane_handle& lane) { return receive_one(group, lane, kLarge); },
     true},
};

class DeviceLaneWaitsTest : public ::testing::TestWithParam<Wait> {
 protected:
  static constexpr uint64_t kShort = 20000;
  static Geometry geometry(uint64_t timeout_ns) {
    return {.ring_shift = 4, .timeout_ns = timeout_ns};
  }
  // The operation gives up; afterwards this side stores nothing that the peer can see.
  static void expect_end(TwoSides& sides, Shape shape, uint32_t fault) {
    const Wait& wait = GetParam();
    const oh_lane_handle lane = sides.handle(wait.side);
    const std::vector<uint64_t> before = sides.snapshot(1 - wait.side);
    Crew crew(shape);
    Threads threads;
    start_all(threads, crew,
              [&](HostGroup& group) { EXPECT_EQ(wait.run(group, lane), fault) << group.rank(); });
    threads.join();
    const std::vector<uint64_t> after = sides.snapshot(1 - wait.side);
    if (!wait.stores) {
      EXPECT_EQ(after, before);
    }
    const auto& notice = sides.notice(wait.side).failed;
    EXPECT_EQ(notice[wait.side].fault, fault);
    EXPECT_EQ(notice[1 - wait.side].fault, OH_LANE_OK) << "the other half goes on";

    // Later operations fail at once, with the first reason.
    sides.abort(wait.side);
    for (uint32_t token : {0u, 9u}) {
      Crew later({.teams = token == 0 ? 1u : 2u, .threads = 2});
      const oh_lane_handle handle = sides.handle(wait.side, token);
      start_all(threads, later,
                [&](HostGroup& group) { EXPECT_EQ(wait.run(group, handle), OH_LANE_FAILED); });
      threads.join();
    }
    EXPECT_EQ(sides.snapshot(1 - wait.side), after);
    EXPECT_EQ(notice[wait.side].fault, fault);
    const LaneMemory& memory = sides.memory(wait.side);
    const LaneHalf& half = wait.side == 0 ? memory.tx : memory.rx;
    EXPECT_EQ(half.state & (kBusy | kFailed), kFailed);
    EXPECT_EQ(half.owner >> 16 & 0xffff, half.owner & 0xffff);
  }
};

TEST_P(DeviceLaneWaitsTest, EndsAtTheDeadline) {
  for (const Shape& shape : {Shape{}, Shape{1, 3}, Shape{1, 4, 2}}) {
    TwoSides sides(geometry(kShort));
    GetParam().prepare(sides);
    expect_end(sides, shape, OH_LANE_TIMEOUT);
  }
}

// Teams that detect the end at different times.
TEST_P(DeviceLaneWaitsTest, EndsForSeveralTeams) {
  for (const Shape& shape : {Shape{2, 1}, Shape{3, 2}}) {
    TwoSides sides(geometry(kShort));
    GetParam().prepare(sides);
    Threads threads;
    Crew crew(shape);
    const oh_lane_handle lane = sides.handle(GetParam().side, 5);
    std::atomic<int> late{0};
    start_all(threads, crew, [&](HostGroup& group) {
      const uint32_t fault = GetParam().run(group, lane);
      EXPECT_THAT(fault, ::testing::AnyOf(OH_LANE_OK, OH_LANE_TIMEOUT, OH_LANE_FAILED));
      late += fault == OH_LANE_TIMEOUT;
    });
    threads.join();
    EXPECT_GT(late.load(), 0);
    const LaneMemory& memory = sides.memory(GetParam().side);
    const LaneHalf& half = GetParam().side == 0 ? memory.tx : memory.rx;
    EXPECT_EQ(half.state & (kBusy | kFailed), kFailed);
    EXPECT_EQ(half.owner >> 16 & 0xffff, half.owner & 0xffff);
    EXPECT_EQ(sides.notice(GetParam().side).failed[GetParam().side].fault, OH_LANE_TIMEOUT);
  }
}

TEST_P(DeviceLaneWaitsTest, EndsWhenTheHostSaysSo) {
  for (const Shape& shape : {Shape{}, Shape{1, 2}, Shape{1, 4, 4}}) {
    TwoSides sides(geometry(Geometry{}.timeout_ns));
    GetParam().prepare(sides);
    sides.abort(GetParam().side);
    expect_end(sides, shape, OH_LANE_ABORTED);
  }
}

TEST_P(DeviceLaneWaitsTest, EndsWhileItWaits) {
  TwoSides sides(geometry(Geometry{}.timeout_ns));
  GetParam().prepare(sides);
  Threads threads;
  Crew crew({.teams = 1, .threads = 2});
  const oh_lane_handle lane = sides.handle(GetParam().side);
  start_all(threads, crew,
            [&](HostGroup& group) { EXPECT_EQ(GetParam().run(group, lane), OH_LANE_ABORTED); });
  LaneMemory& memory = sides.memory(GetParam().side);
  LaneHalf& half = GetParam().side == 0 ? memory.tx : memory.rx;
  wait_until([&] { return (HostAtomics::load_acquire(&half.state) & kBusy) != 0; });
  sides.abort(GetParam().side);
  threads.join();
  EXPECT_EQ(sides.notice(GetParam().side).failed[GetParam().side].fault, OH_LANE_ABORTED);
}

INSTANTIATE_TEST_SUITE_P(Waits, DeviceLaneWaitsTest, ::testing::ValuesIn(kWaits),
                         [](const auto& wait) { return wait.param.name; });

// The leader waits for room. All threads get its fault from the same message, so a user's kernel
// may leave its loop there.
TEST(DeviceLaneWaitTest, AllThreadsOfAGroupGiveUpAtTheSameMessage) {
  for (const uint64_t size : {uint64_t{8}, uint64_t{9}, uint64_t{100}, kLarge}) {
    TwoSides sides({.ring_shift = 4, .timeout_ns = 20000});
    fill_ring(sides);
    const std::vector<uint64_t> before = sides.snapshot(1);
    const oh_lane_handle lane = sides.handle(0);
    const std::vector<uint8_t> source(kLarge);
    Crew crew({.teams = 1, .threads = 3});
    Threads threads;
    start_all(threads, crew, [&](HostGroup& group) {
      Sender<Delayed> sender(lane, group);
      ASSERT_TRUE(sender.take(group));
      for (int i = 0; i < 2; ++i) {
        sender.send(group, source.data(), size);
        EXPECT_EQ(sender.half.fault, OH_LANE_TIMEOUT);
      }
      EXPECT_EQ(sender.give(group), OH_LANE_TIMEOUT);
    });
    threads.join();
    EXPECT_EQ(sides.snapshot(1), before) << size;
    EXPECT_EQ(sides.memory(0).tx.state, make_state(1, 16) | kFailed);
  }
}

// Of a settled message each thread waits for itself. One has no time; the other finds room.
TEST(DeviceLaneWaitTest, OneThreadGivesUpWhereAnotherFindsRoom) {
  TwoSides sides({.ring_shift = 4});
  fill_ring(sides);
  oh_lane_handle lanes[2] = {sides.handle(0), sides.handle(0)};
  lanes[0].timeout_ns = 0;
  std::atomic<bool> gave_up{false};
  Crew crew({.teams = 1, .threads = 2});
  Threads threads;
  const std::vector<uint8_t> source(kSmall);
  start_all(threads, crew, [&](HostGroup& group) {
    Sender<Delayed> sender(lanes[group.rank()], group);
    ASSERT_TRUE(sender.take_for(group, kSmall));
    if (group.rank() == 1) {
      wait_until([&] { return gave_up.load(); });
      publish<HostAtomics>(&sides.memory(0).credit, 1, 16);
    }
    sender.send(group, source.data(), kSmall, true);
    if (group.rank() == 0) gave_up = true;
    EXPECT_EQ(sender.give(group), OH_LANE_TIMEOUT) << group.rank();
  });
  threads.join();
  EXPECT_EQ(sides.notice(0).failed[0].fault, OH_LANE_TIMEOUT);
}

// One thread gives up before the announcement arrives, while another proceeds to the large message:
// they meet once, and never again.
TEST(DeviceLaneWaitTest, OneThreadGivesUpBeforeTheOthersSeeALargeMessage) {
  TwoSides sides;
  oh_lane_handle lanes[2] = {sides.handle(1), sides.handle(1)};
  lanes[1].timeout_ns = 0;
  std::vector<uint8_t> target(kLarge);
  std::atomic<bool> gave_up{false};
  Crew crew({.teams = 1, .threads = 2});
  Threads threads;
  start_all(threads, crew, [&](HostGroup& group) {
    Receiver<Delayed> receiver(lanes[group.rank()], group);
    ASSERT_TRUE(receiver.take(group));
    receiver.receive(group, target.data(), kLarge, {}, true);
    if (group.rank() == 1) gave_up = true;
    EXPECT_EQ(receiver.give(group), OH_LANE_TIMEOUT) << group.rank();
  });
  wait_until([&] { return gave_up.load(); });
  announce(sides, kLarge);
  store_at(lanes[0], 1, {{kEnded << 30 | kPut, 0, 0}, 0});
  threads.join();
  EXPECT_EQ(sides.notice(1).failed[1].fault, OH_LANE_TIMEOUT);
}

// The same at the end of a kernel. The others find the message too long for their target, and none
// waits for another one's vote.
TEST(DeviceLaneWaitTest, OneThreadOfAStreamGivesUpBeforeTheOthersSeeALargeMessage) {
  TwoSides sides;
  oh_lane_handle lanes[2] = {sides.handle(1), sides.handle(1)};
  lanes[1].timeout_ns = 0;
  std::atomic<bool> gave_up{false};
  Crew crew({.teams = 1, .threads = 2});
  Threads threads;
  start_all(threads, crew, [&](HostGroup& group) {
    std::vector<uint8_t> target(kSmall);
    Receiver<Delayed> receiver(lanes[group.rank()], group);
    ASSERT_TRUE(receiver.take(group));
    receiver.receive<false>(group, target.data(), kSmall, {}, true);
    if (group.rank() == 1) gave_up = true;
    EXPECT_EQ(receiver.half.fault, group.rank() == 1 ? OH_LANE_TIMEOUT : OH_LANE_TRUNCATED);
    receiver.finish(group);
  });
  wait_until([&] { return gave_up.load(); });
  announce(sides, kLarge);
  store_at(lanes[0], 1, {{kEnded << 30 | kRefused, 0, 0}, 0});
  threads.join();
  EXPECT_EQ(sides.notice(1).failed[1].fault, OH_LANE_TIMEOUT);
  EXPECT_EQ(sides.memory(1).rx.state & (kBusy | kFailed), kFailed);
}

// The leader has its own lines and learns of the fault.
TEST(DeviceLaneWaitTest, OneThreadOfAStreamWithoutItsLineFailsTheHalf) {
  TwoSides sides({.ring_shift = 4, .timeout_ns = 20000});
  const oh_lane_handle lane = sides.handle(1);
  const uint32_t lines = lines_for(kSmall);
  ASSERT_GE(lines, lines_of(lane) / 4) << "credit is due";
  store_at(lane, 0, {{static_cast<uint32_t>(kSmall), 1, 2}, 0});
  for (uint32_t i = 1; i + 1 < lines; ++i) store_at(lane, i, {{1, 2, 3}, 0});
  const std::vector<uint64_t> before = sides.snapshot(0);
  Crew crew({.threads = 3});
  ASSERT_NE((lines - 2) % crew.shape.threads, 0u) << "not the leader's line";
  Threads threads;
  start_all(threads, crew,
            [&](HostGroup& group) { EXPECT_EQ(finish_one(group, lane, kSmall), OH_LANE_TIMEOUT); });
  threads.join();
  EXPECT_EQ(sides.snapshot(0), before);
  EXPECT_EQ(sides.memory(1).rx.state, make_state(1, 0) | kFailed);
}

// A large message is longer than the target of a small one. The lane goes on.
TEST(DeviceLaneWaitTest, AStreamRefusesAMessageThatIsTooLong) {
  for (const Shape& shape : {Shape{}, Shape{1, 3}, Shape{2, 2}}) {
    TwoSides sides;
    const oh_lane_handle lane = sides.handle(1, 7);
    announce(sides, kLarge);
    store_at(lane, 1, {{kEnded << 30 | kRefused, 0, 0}, 0});
    store_at(lane, 2, {{8, 0, 0}, 0});
    for (uint32_t fault : {OH_LANE_TRUNCATED, OH_LANE_OK}) {
      sides.notice(1).warned[1].fault = OH_LANE_OK;
      Crew crew(shape);
      Threads threads;
      start_all(threads, crew, [&](HostGroup& group) {
        EXPECT_EQ(finish_one(group, lane, kSmall), OH_LANE_OK) << "the half has not failed";
      });
      threads.join();
      EXPECT_EQ(sides.notice(1).warned[1].fault, fault);
    }
    EXPECT_EQ(sides.memory(1).rx.state, make_state(1, 3));
  }
}

// A receive of a stream gives credit before it waits, and at its end only if many lines are not
// free.
TEST(DeviceLaneWaitTest, AStreamGivesCreditBeforeItWaits) {
  constexpr uint64_t kQuarter = 8;
  TwoSides sides({.small_max = 24});
  Alone alone;
  const oh_lane_handle lanes[] = {sides.handle(0), sides.handle(1)};
  for (uint64_t i = 0; i < kQuarter; ++i) {
    ASSERT_EQ(send_one(alone.group, lanes[0], 8), OH_LANE_OK);
    ASSERT_EQ(finish_one(alone.group, lanes[1], 8), OH_LANE_OK);
  }
  EXPECT_EQ(sides.memory(0).credit, make_word(1, 0));
  Threads threads;
  threads.start([&] {
    Alone other;
    EXPECT_EQ(finish_one(other.group, lanes[1], 8), OH_LANE_OK);
  });
  wait_until(
      [&] { return HostAtomics::load_acquire(&sides.memory(0).credit) == make_word(1, kQuarter); });
  ASSERT_EQ(send_one(alone.group, lanes[0], 8), OH_LANE_OK);
  threads.join();
}
TEST(DeviceLaneWaitTest, AStreamKeepsBackCreditForHalfOfTheRingAtMost) {
  struct {
    uint64_t small_max, limit;
  } const cases[] = {{UINT64_MAX, 8},          // the longest message has three quarters of the ring
                     {bytes_within(16), 16}};  // a half
  for (const auto& [small_max, limit] : cases) {
    for (uint64_t lines : {limit - 1, limit}) {
      TwoSides sides({.small_max = small_max});
      const oh_lane_handle lanes[] = {sides.handle(0), sides.handle(1)};
      Alone alone;
      const uint64_t size = bytes_within(static_cast<uint32_t>(lines));
      ASSERT_EQ(send_one(alone.group, lanes[0], size), OH_LANE_OK);
      ASSERT_EQ(finish_one(alone.group, lanes[1], size), OH_LANE_OK);
      EXPECT_EQ(sides.memory(0).credit, make_word(1, lines < limit ? 0 : lines));
      EXPECT_EQ(send_one(alone.group, lanes[0], small_bytes(lanes[0])), OH_LANE_OK);
    }
  }
}

// The first team waits for the receiver, the other teams for the first.
TEST(DeviceLaneWaitTest, ATeamWithoutTheFirstOneGivesUp) {
  TwoSides sides({.timeout_ns = 20000});
  const std::vector<uint64_t> before = sides.snapshot(1);
  Crew crew({.teams = 2});
  HostGroup second(crew, 1);
  EXPECT_EQ(send_one(second, sides.handle(0, 3), kLarge), OH_LANE_FAILED);
  EXPECT_EQ(sides.snapshot(1), before);
  EXPECT_EQ(sides.memory(0).tx.owner, 0u);
}

// The peer's credit is ignored where it is impossible.
TEST(DeviceLaneWaitTest, CreditOfAnotherEpochOrAheadOfUsIsNone) {
  for (uint64_t word : {make_word(2, 16), make_word(1, 1000), make_word(255, 16)}) {
    TwoSides sides({.ring_shift = 4, .timeout_ns = 20000});
    fill_ring(sides);
    sides.memory(0).credit = word;
    Alone alone;
    EXPECT_EQ(send_one(alone.group, sides.handle(0), 8), OH_LANE_TIMEOUT);
  }
}

// Received by groups of every shape.
void expect_protocol_fault(const std::vector<Line>& lines,
                           uint32_t (*receive)(HostGroup&, const oh_lane_handle&, uint64_t)) {
  for (const Shape& shape : {Shape{}, Shape{1, 3}, Shape{2, 2}, Shape{1, 4, 2}}) {
    TwoSides sides({.ring_shift = 4});
    const oh_lane_handle lane = sides.handle(1, 7);
    for (size_t i = 0; i < lines.size(); ++i) store_at(lane, i, lines[i]);
    const std::vector<uint64_t> before = sides.snapshot(0);
    Crew crew(shape);
    Threads threads;
    start_all(threads, crew, [&](HostGroup& group) {
      // A team may observe that another team's failure ended the lane.
      const uint32_t other = shape.teams > 1 ? OH_LANE_FAILED : OH_LANE_PROTOCOL;
      EXPECT_THAT(receive(group, lane, 100), ::testing::AnyOf(OH_LANE_PROTOCOL, other));
    });
    threads.join();
    EXPECT_EQ(sides.notice(1).failed[1].fault, OH_LANE_PROTOCOL);
    EXPECT_EQ(sides.notice(1).warned[1].fault, OH_LANE_OK);
    EXPECT_EQ(sides.memory(0).credit, reinterpret_cast<const LaneMemory*>(before.data())->credit);
    EXPECT_EQ(sides.memory(1).rx.state & (kBusy | kFailed), kFailed);
  }
}

TEST(DeviceLaneWaitTest, ALengthOrKindThatNobodySends) {
  const auto most = most_small(TwoSides({.ring_shift = 4}).handle(1));
  for (uint32_t word : {most + 1, (1u << 30) - 1, kEnded << 30 | kPut, 3u << 30, ~0u}) {
    for (auto* receive : {receive_one, finish_one}) {
      expect_protocol_fault({{{word, 0, 0}, 0}}, receive);
    }
  }
}

TEST(DeviceLaneWaitTest, AnEndingThatNobodySends) {
  const Line announced{{kAnnounced << 30, 100, 0}, 0};
  for (uint32_t word : {0u, 20u, kAnnounced << 30 | kPut, kEnded << 30, kEnded << 30 | 4, ~0u}) {
    for (auto* receive : {receive_one, finish_one}) {
      expect_protocol_fault({announced, {{word, 0, 0}, 0}}, receive);
    }
  }
  // The target is too small for a large message: only a refusal is valid.
  for (uint32_t how : {kPut, kStaged}) {
    expect_protocol_fault({announced, {{kEnded << 30 | how, 0, 0}, 0}}, finish_one);
  }
}

}  // namespace
}  // namespace device_lane_waits_test
