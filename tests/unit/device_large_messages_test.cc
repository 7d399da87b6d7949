// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "unit/device_flow.h"

namespace device_large_messages_test {
namespace {

using namespace unit;

// Two regions hash to the last entry of the table.
constexpr uint32_t kRegion = 15;
constexpr uint32_t kOtherRegion = 7;

struct Way {
  const char* name;
  Shape senders;
  Shape receivers;
  size_t per_take;
  uint64_t small_max;  // beyond the ring: the receiver posts when it knows the length
};
void PrintTo(const Way& way, std::ostream* stream) { *stream << way.name; }

class DeviceLargeMessagesTest : public ::testing::TestWithParam<Way> {
 protected:
  static Geometry geometry() {
    return {.ring_shift = 4,
            .small_max = GetParam().small_max,
            .epoch = 255,
            .position = first_positions(4)[1]};
  }
  // Messages with several chunks and tiles, more of each than there are slots and teams, with small
  // messages in between.
  static Course course(uint64_t salt) {
    std::vector<Message> messages;
    for (uint64_t size : {53, 64, 65, 191, 192, 193, 4096, 8191, 12289, 20000}) {
      messages.push_back({size, size});
      messages.push_back({size % 50, 50});
      messages.push_back({size, size + 100});
    }
    return {.messages = std::move(messages),
            .senders = GetParam().senders,
            .receivers = GetParam().receivers,
            .per_take = GetParam().per_take,
            .region = kRegion,
            .salt = salt};
  }
  static uint64_t large_ones(TwoSides& sides) {
    const uint32_t most = small_bytes(sides.handle(0));
    const std::vector<Message> all = course(0).messages;
    return static_cast<uint64_t>(
        std::count_if(all.begin(), all.end(), [&](const Message& one) { return one.size > most; }));
  }
  static void run_both(Flow& there, Flow& back) {
    Threads threads;
    there.start(threads);
    back.start(threads);
  }
  static uint64_t chunks_sent(TwoSides& sides, int side) {
    return sides.memory(side).tx.chunks - geometry().position;
  }
};

TEST_P(DeviceLargeMessagesTest, ThroughTheChunksWhereTheRegionIsNotMapped) {
  TwoSides sides(geometry());
  Flow there(sides, 0, course(1));
  Flow back(sides, 1, course(2));
  sides.import(0, kOtherRegion, there.targets(), there.targets_size());
  sides.import(1, kRegion, back.targets(), 40);  // smaller than the targets
  run_both(there, back);
  EXPECT_GT(chunks_sent(sides, 0), 1000u);
  EXPECT_EQ(chunks_sent(sides, 0), chunks_sent(sides, 1));
  EXPECT_EQ(sides.memory(1).rx.chunks, sides.memory(0).tx.chunks);
  for (int side : {0, 1}) {
    EXPECT_EQ(sides.notice(side).large.staged, large_ones(sides));
    EXPECT_EQ(sides.notice(side).large.put, 0u);
  }
}

TEST_P(DeviceLargeMessagesTest, StraightIntoARegionThatIsMapped) {
  TwoSides sides(geometry());
  Flow there(sides, 0, course(3));
  Flow back(sides, 1, course(4));
  sides.import(0, kOtherRegion, back.targets(), 8);
  sides.import(0, kRegion, there.targets(), there.targets_size());
  sides.import(1, kRegion, back.targets(), back.targets_size());
  run_both(there, back);
  EXPECT_EQ(chunks_sent(sides, 0) + chunks_sent(sides, 1), 0u);
  for (int side : {0, 1}) {
    EXPECT_EQ(sides.notice(side).large.put, large_ones(sides));
    EXPECT_EQ(sides.notice(side).large.staged, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, DeviceLargeMessagesTest,
    ::testing::Values(Way{"OneThread", {}, {}, 1, 40}, Way{"PostedLate", {}, {}, 5, UINT64_MAX},
                      Way{"Threads", {1, 3}, {1, 2}, 1, 40},
                      Way{"ThreadsManyATake", {1, 2}, {1, 3}, 100, 40},
                      Way{"ThreadsManyATakePostedLate", {1, 3}, {1, 2}, 4, UINT64_MAX},
                      Way{"Teams", {3, 2}, {2, 1}, 1, 40},
                      Way{"TeamsPostedLate", {2, 1}, {3, 2}, 1, UINT64_MAX},
                      Way{"Parts", {1, 4, 2}, {1, 6, 3}, 1, 40},
                      Way{"PartsManyATake", {1, 4, 4}, {1, 2, 2}, 4, 40},
                      Way{"TeamsOfParts", {2, 2, 2}, {1, 4, 2}, 1, UINT64_MAX}),
    [](const auto& way) { return way.param.name; });

// Whether the sender has announced its first message, or the receiver has posted its target.
bool is_announced(TwoSides& sides) {
  const oh_lane_handle lane = sides.handle(1);
  const Pair* head = reinterpret_cast<const Pair*>(lane.mine + lane.lines_at);
  return HostAtomics::load_acquire(&head->high) != 0;
}
bool is_posted(TwoSides& sides) {
  return HostAtomics::load_acquire(&sides.memory(0).posted[1].high) != 0;
}

TEST(DeviceLargeOrderTest, WhoeverComesFirst) {
  for (bool mapped : {false, true}) {
    for (bool receiver_first : {false, true}) {
      TwoSides sides({.ring_shift = 3, .small_max = 16});
      Flow flow(sides, 0, {.messages = {{5000, 5000}, {16, 16}}, .region = kRegion});
      if (mapped) sides.import(0, kRegion, flow.targets(), flow.targets_size());
      Threads threads;
      if (receiver_first) {
        flow.start_receivers(threads);
        wait_until([&] { return is_posted(sides); });
        flow.start_senders(threads);
      } else {
        flow.start_senders(threads);
        wait_until([&] { return is_announced(sides); });
        flow.start_receivers(threads);
      }
      threads.join();
      EXPECT_EQ(sides.memory(0).tx.chunks, mapped ? 0u : (5000 + 63) / 64);
    }
  }
}

// One member of a crew, at its own pace.
uint32_t send_part(Crew& crew, uint32_t rank, const oh_lane_handle& lane,
                   const std::vector<uint8_t>& source) {
  HostGroup group(crew, rank);
  Sender<Delayed> sender(lane, group);
  if (!sender.take_for(group, UINT64_MAX)) return sender.half.fault;
  sender.send(group, source.data(), source.size(), true);
  return sender.give(group);
}

// Receives a message of `size` bytes in one thread.
void receive_whole(const oh_lane_handle& lane, std::vector<uint8_t>& target, uint64_t size,
                   const Place& place = {}) {
  Alone alone;
  Receiver<Delayed> receiver(lane, alone.group);
  ASSERT_TRUE(receiver.take(alone.group));
  receiver.receive(alone.group, target.data(), size, place);
  EXPECT_EQ(receiver.give(alone.group), OH_LANE_OK);
}

// The second team has nothing to send: it arrives after the receiver has posted its next receive.
TEST(DeviceLargeOrderTest, ATeamWithoutAChunkMayComeLate) {
  TwoSides sides({.small_max = 16});
  const std::vector<uint8_t> source(64, 9);
  std::vector<uint8_t> target(64);
  const oh_lane_handle lane = sides.handle(0, 3);
  const oh_lane_handle theirs = sides.handle(1);
  Crew crew({.teams = 2});
  Threads threads;
  threads.start([&] {
    receive_whole(theirs, target, target.size());
    EXPECT_EQ(target, source);
    post<Delayed>(sides.memory(0).posted, 1, 2, {{}, 4000});
  });
  EXPECT_EQ(send_part(crew, 0, lane, source), OH_LANE_OK);
  threads.join();
  EXPECT_EQ(send_part(crew, 1, lane, source), OH_LANE_OK);
  EXPECT_EQ(sides.memory(0).tx.state, make_state(1, 2));
  EXPECT_EQ(sides.notice(0).failed[0].fault, OH_LANE_OK);
}

// Regions may be imported at any time: all teams use the result of the first one's look-up.
TEST(DeviceLargeOrderTest, ATableThatChangesBetweenTwoTeams) {
  TwoSides sides({.small_max = 16});
  const std::vector<uint8_t> source(128, 9);
  std::vector<uint8_t> target(144);
  const oh_lane_handle lane = sides.handle(0, 3);
  const oh_lane_handle theirs = sides.handle(1);
  Crew crew({.teams = 2});
  Threads threads;
  threads.start([&] { receive_whole(theirs, target, 128, {kRegion, 0}); });
  EXPECT_EQ(send_part(crew, 0, lane, source), OH_LANE_OK);
  sides.import(0, kRegion, target.data(), target.size());
  EXPECT_EQ(send_part(crew, 1, lane, source), OH_LANE_OK);
  threads.join();
  EXPECT_TRUE(std::equal(source.begin(), source.end(), target.begin()));
  EXPECT_EQ(sides.memory(0).tx.chunks, 2u);
}

// Each part of a team looks on its own. A guess makes the look-up of one part find the region,
// which the table of the others does not have.
TEST(DeviceLargeOrderTest, ATableThatChangesBetweenTwoParts) {
  for (uint32_t finder : {0u, 1u, 2u}) {
    TwoSides sides({.small_max = 16});
    const std::vector<uint8_t> source(20000, 9);
    std::vector<uint8_t> target(source.size());
    const oh_lane_handle lane = sides.handle(0);
    Crew crew({.threads = 3, .parts = 3});
    Threads threads;
    start_all(threads, crew, [&](HostGroup& group) {
      Sender<Delayed> sender(lane, group);
      ASSERT_TRUE(sender.take_for(group, UINT64_MAX));
      if (group.rank() == finder) {
        sender.guess.entry = {{source.size(), kRegion},
                              {reinterpret_cast<uint64_t>(target.data()), kRegion}};
      }
      sender.send(group, source.data(), source.size(), true);
      EXPECT_EQ(sender.give(group), OH_LANE_OK);
    });
    const oh_lane_handle theirs = sides.handle(1);
    receive_whole(theirs, target, target.size(), {kRegion, 0});
    threads.join();
    EXPECT_EQ(target, source);
    EXPECT_EQ(sides.memory(0).tx.state, make_state(1, 2));
    EXPECT_EQ(sides.notice(0).large.put, finder == 0 ? 1u : 0u) << "the leader decides";
    EXPECT_EQ(sides.notice(0).large.staged, finder == 0 ? 0u : 1u);
    EXPECT_EQ(sides.memory(0).tx.chunks, finder == 0 ? 0u : (20000 + 63) / 64);
  }
}

// A target that the sender has mapped.
struct Mapped {
  TwoSides sides{{.small_max = 16}};
  const std::vector<uint8_t> source = std::vector<uint8_t>(20000, 9);
  std::vector<uint8_t> target = std::vector<uint8_t>(20000);
  const oh_lane_handle receiver = sides.handle(1);
  Mapped() { sides.import(0, kRegion, target.data(), target.size()); }
};

// Three parts send a message into the target. One of them looks for the posting in memory where it
// never comes, and gives up. Returns the faults of all.
std::vector<uint32_t> send_while_one_gives_up(uint32_t loser, Mapped& mapped) {
  TwoSides& sides = mapped.sides;
  const std::vector<uint8_t>& source = mapped.source;
  constexpr uint64_t kShort = 20000;
  const TwoSides elsewhere({.small_max = 16});
  oh_lane_handle lost = sides.handle(0);
  lost.mine = elsewhere.handle(0).mine;
  lost.timeout_ns = kShort;
  const oh_lane_handle lane = sides.handle(0);
  std::vector<uint32_t> faults(3);
  Crew crew({.threads = 3, .parts = 3});
  Threads threads;
  start_all(threads, crew, [&](HostGroup& group) {
    Sender<Delayed> sender(group.rank() == loser ? lost : lane, group);
    ASSERT_TRUE(sender.take_for(group, UINT64_MAX));
    sender.send(group, source.data(), source.size(), true);
    faults[group.rank()] = sender.give(group);
  });
  threads.join();
  const LaneMemory& memory = loser == 0 ? *mine(lost) : sides.memory(0);
  EXPECT_EQ(memory.tx.state & kBusy, 0u);
  EXPECT_EQ(memory.tx.state & kFailed, loser == 0 ? kFailed : 0u);
  return faults;
}

TEST(DeviceLargeOrderTest, APartThatGivesUpGoesByTheRouteOfTheLeader) {
  Mapped mapped;
  Threads threads;
  threads.start(
      [&] { receive_whole(mapped.receiver, mapped.target, mapped.target.size(), {kRegion, 0}); });
  EXPECT_EQ(send_while_one_gives_up(1, mapped), std::vector<uint32_t>(3, OH_LANE_OK));
  threads.join();
  EXPECT_EQ(mapped.target, mapped.source);
  EXPECT_EQ(mapped.sides.notice(0).large.put, 1u);
  EXPECT_EQ(mapped.sides.notice(0).failed[0].fault, OH_LANE_OK);
}

// What the others have put is in the target. The message does not end: the receiver waits on.
TEST(DeviceLargeOrderTest, ALeaderThatGivesUpFailsThePartsThatHavePut) {
  Mapped mapped;
  Threads threads;
  threads.start([&] {
    Alone alone;
    Receiver<Delayed> receiver(mapped.receiver, alone.group);
    ASSERT_TRUE(receiver.take(alone.group));
    receiver.receive(alone.group, mapped.target.data(), mapped.target.size(), {kRegion, 0});
    EXPECT_EQ(receiver.give(alone.group), OH_LANE_ABORTED);
  });
  EXPECT_EQ(send_while_one_gives_up(0, mapped), std::vector<uint32_t>(3, OH_LANE_TIMEOUT));
  EXPECT_EQ(mapped.sides.notice(0).failed[0].fault, OH_LANE_TIMEOUT);
  EXPECT_EQ(mapped.sides.notice(0).large.put, 0u);
  mapped.sides.abort(1);
  threads.join();
  EXPECT_EQ(mapped.target.front(), 0) << "the leader's part";
  EXPECT_EQ(mapped.target.back(), mapped.source.back()) << "the last part";
}

// Before earlier work of its stream has ended, a send loads the entry of the region that was posted
// last. The half is held by then, so the region stays mapped.
TEST(DeviceLargeOrderTest, AGuessOfTheRegionThatWasPostedLast) {
  struct Case {
    const char* name;
    uint32_t last;  // the region of an earlier posting
    uint64_t size;  // of the region, as the table has it before the send follows
    bool renamed;   // and then the table has another region in its place
    uint64_t put;
  };
  for (const Case& now :
       {Case{"right", kRegion, 500, true, 1}, Case{"too small", kRegion, 499, false, 0},
        Case{"another region", kOtherRegion, 500, false, 1},
        Case{"another region, and none is mapped now", kOtherRegion, 500, true, 0},
        Case{"none", 0, 500, false, 1}}) {
    TwoSides sides({.small_max = 16, .position = 4});
    const std::vector<uint8_t> source(500, 9);
    std::vector<uint8_t> target(500);
    post<HostAtomics>(sides.memory(0).posted, 1, 2, {{now.last, 0}, 500});
    // At its own place in the table: the region goes to the next one.
    if (now.last == kOtherRegion) sides.import(0, kOtherRegion, source.data(), source.size());
    sides.import(0, kRegion, target.data(), now.size);
    const oh_lane_handle lane = sides.handle(0);
    Crew crew(Shape{});
    crew.follow = [&] {
      if (now.renamed) sides.rename_import(0, kRegion, kRegion + 16);
    };
    Threads threads;
    threads.start([&] {
      HostGroup group(crew, 0);
      Sender<Delayed> sender(lane, group);
      ASSERT_TRUE(sender.take_early(group, source.size()));
      sender.send(group, source.data(), source.size(), true);
      EXPECT_EQ(sender.give(group), OH_LANE_OK);
    });
    const oh_lane_handle theirs = sides.handle(1);
    receive_whole(theirs, target, target.size(), {kRegion, 0});
    threads.join();
    EXPECT_EQ(target, source) << now.name;
    EXPECT_EQ(sides.notice(0).large.put, now.put) << now.name;
    EXPECT_EQ(sides.notice(0).large.staged, 1 - now.put) << now.name;
  }
}

TEST(DeviceLargeOrderTest, CountedAsItGoesWhenItsMemoryIsMappedLater) {
  TwoSides sides({.small_max = 16});
  const Course course{.messages = {{500, 500}, {16, 16}, {600, 700}}, .region = kRegion};
  for (bool mapped : {false, true}) {
    Flow flow(sides, 0, course);
    if (mapped) sides.import(0, kRegion, flow.targets(), flow.targets_size());
    Threads threads;
    flow.start(threads);
    threads.join();
    EXPECT_EQ(sides.notice(0).large.staged, 2u);
    EXPECT_EQ(sides.notice(0).large.put, mapped ? 2u : 0u);
    EXPECT_EQ(sides.notice(1).large.staged + sides.notice(1).large.put, 0u);
  }
}

TEST(DeviceLargeOrderTest, BothSidesAreToldOfWhatIsTooLong) {
  TwoSides sides({.small_max = 16});
  Flow flow(sides, 0, {.messages = {{500, 499}, {10, 8}, {500, 500}}});
  Threads threads;
  flow.start(threads);
  threads.join();
  const auto& sent = sides.notice(0).warned[0];
  EXPECT_EQ(sent.fault, OH_LANE_TRUNCATED);
  EXPECT_EQ(sent.bytes, 500u);
  EXPECT_EQ(sent.capacity, 499u);
  EXPECT_EQ(sides.notice(0).large.staged, 1u) << "the other one was not sent";
  const auto& received = sides.notice(1).warned[1];
  EXPECT_EQ(received.fault, OH_LANE_TRUNCATED);
  EXPECT_EQ(received.bytes, 10u) << "the last one";
  EXPECT_EQ(received.capacity, 8u);
  for (int side : {0, 1}) {
    EXPECT_EQ(sides.notice(side).failed[side].fault, OH_LANE_OK);
    EXPECT_EQ(sides.notice(side).warned[1 - side].fault, OH_LANE_OK);
  }
}

// Positions and offsets of which no bit may be lost.
TEST(DeviceLargeOrderTest, APostingIsThatOfItsMessageOnly) {
  for (uint64_t position : {uint64_t{0}, (uint64_t{1} << 24) - 1, uint64_t{0x1a2b3c4d5e6f}}) {
    Pair lines[2] = {};
    const Posting said{{0xfedcba98, 0xabcdef012345}, 0x123456789abcdef0};
    Posting seen{};
    EXPECT_FALSE(read_posting<HostAtomics>(lines, 7, position, &seen));
    post<HostAtomics>(lines, 7, position, said);
    EXPECT_FALSE(read_posting<HostAtomics>(lines, 8, position, &seen));
    EXPECT_FALSE(read_posting<HostAtomics>(lines, 7, position + 2, &seen));
    EXPECT_FALSE(read_posting<HostAtomics>(lines, 7, position + (1 << 24), &seen));
    EXPECT_FALSE(read_posting<HostAtomics>(lines, 7, position + (uint64_t{1} << 40), &seen));
    ASSERT_TRUE(read_posting<HostAtomics>(lines, 7, position, &seen));
    EXPECT_EQ(seen.place.region, said.place.region);
    EXPECT_EQ(seen.place.offset, said.place.offset);
    EXPECT_EQ(seen.capacity, said.capacity);
    post<HostAtomics>(lines, 7, position + 2, said);
    Pair next[2] = {lines[0], {}};
    post<HostAtomics>(lines, 7, position, said);
    next[1] = lines[1];
    EXPECT_FALSE(read_posting<HostAtomics>(next, 7, position, &seen)) << "half of another";
  }
}

}  // namespace
}  // namespace device_large_messages_test
