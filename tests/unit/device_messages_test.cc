// SPDX-License-Identifier: Apache-2.0
#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"

#include <algorithm>
#include <cstddef>

#include "unit/device_flow.h"

namespace device_messages_test {
namespace {

using namespace unit;

// The layout of docs/device-protocol.md.
static_assert(offsetof(LaneMemory, rx) == 64 && offsetof(LaneMemory, credit) == 128);
static_assert(offsetof(LaneMemory, posted) == 192 && offsetof(LaneMemory, filled) == 256);
static_assert(offsetof(LaneMemory, emptied) == 768 && offsetof(LaneMemory, kept_credit) == 1280);

std::vector<uint64_t> sizes_up_to(uint64_t most) {
  std::vector<uint64_t> sizes;
  for (uint64_t size = 0; size <= most; ++size) sizes.push_back(size);
  return sizes;
}

// Sizes around a message's rows, all small sizes, and sizes around chunks.
std::vector<uint64_t> boundaries(const oh_lane_handle& lane) {
  std::vector<uint64_t> sizes;
  const uint64_t chunk = uint64_t{1} << lane.chunk_shift;
  auto around = [&sizes](uint64_t size) {
    for (uint64_t i = size < 2 ? 0 : size - 2; i <= size + 2; ++i) sizes.push_back(i);
  };
  for (uint64_t size : {0, 8, 136, 264, 392, 776}) around(size);
  around(most_small(lane));
  if (lane.small_max != UINT64_MAX) around(lane.small_max);
  for (uint64_t chunks : {1u, 2u, lane.chunk_slots, lane.chunk_slots + 1, 3 * lane.chunk_slots}) {
    around(chunks * chunk);
  }
  return sizes;
}

struct Way {
  const char* name;
  Shape senders;
  Shape receivers;
  size_t per_take;
  bool single;
};
void PrintTo(const Way& way, std::ostream* stream) { *stream << way.name; }

class DeviceMessagesTest : public ::testing::TestWithParam<Way> {
 protected:
  Course course(std::vector<Message> messages, uint64_t salt) const {
    return {.messages = std::move(messages),
            .senders = GetParam().senders,
            .receivers = GetParam().receivers,
            .per_take = GetParam().per_take,
            .single = GetParam().single,
            .salt = salt};
  }
  static Geometry geometry(uint32_t ring_shift, uint8_t epoch, uint64_t position) {
    return {.ring_shift = ring_shift, .epoch = epoch, .position = position};
  }
};

// Both directions at once; the larger messages use chunks.
TEST_P(DeviceMessagesTest, EverySize) {
  Geometry small = geometry(7, 254, first_positions(7)[1]);
  small.chunk_shift = 8;
  TwoSides sides(small);
  Flow there(sides, 0, course(messages_of(sizes_up_to(1100)), 1));
  std::vector<Message> messages = messages_of(sizes_up_to(1100), true);
  std::reverse(messages.begin(), messages.end());
  Flow back(sides, 1, course(std::move(messages), 2));
  Threads threads;
  there.start(threads);
  back.start(threads);
}

// The ring's laps wrap, and all messages are small.
TEST_P(DeviceMessagesTest, EverySizeInAWiderRingOfAnotherEpoch) {
  for (uint8_t epoch : {255, 1}) {
    TwoSides sides(geometry(8, epoch, first_positions(8)[epoch == 1 ? 2 : 4]));
    Flow there(sides, 1, course(messages_of(sizes_up_to(epoch == 1 ? 300 : 1100)), epoch));
    Threads threads;
    there.start(threads);
  }
}

TEST_P(DeviceMessagesTest, EveryBoundaryOfRingsAndChunks) {
  for (uint32_t shift : {2u, 3u, 5u, 6u}) {
    for (uint64_t small_max : {UINT64_MAX, uint64_t{20}, uint64_t{0}}) {
      Geometry narrow = geometry(shift, 255, first_positions(shift)[shift % 5]);
      narrow.small_max = small_max;
      narrow.chunk_slots = 1u << shift % 4;
      TwoSides sides(narrow);
      std::vector<uint64_t> sizes = boundaries(sides.handle(0));
      Flow there(sides, 0, course(messages_of(sizes, true), 7));
      std::sort(sizes.begin(), sizes.end());
      Flow back(sides, 1, course(messages_of(sizes), 8));
      Threads threads;
      there.start(threads);
      back.start(threads);
    }
  }
}

// Chunks of 4 and 8 KiB in slots of 8 KiB: a message has 16 or more of them where possible.
TEST_P(DeviceMessagesTest, ChunksOfEverySizeShareTheSlots) {
  Geometry wide = geometry(6, 3, 0);
  wide.chunk_shift = 13;
  wide.small_max = 0;
  TwoSides sides(wide);
  const oh_lane_handle lane = sides.handle(0);
  constexpr uint64_t kChange = uint64_t{16} << 13;
  EXPECT_EQ(chunk_shift_of(lane, 1), 12u);
  EXPECT_EQ(chunk_shift_of(lane, kChange - 1), 12u);
  EXPECT_EQ(chunk_shift_of(lane, kChange), 13u);
  std::vector<uint64_t> sizes{1, 4095, 4096, 4097, 8192, 20000};
  for (uint64_t size : {kChange - 1, kChange, kChange + 1, uint64_t{5000}, 2 * kChange + 7}) {
    sizes.push_back(size);
  }
  Flow there(sides, 0, course(messages_of(sizes, true), 3));
  Flow back(sides, 1, course(messages_of(sizes), 4));
  Threads threads;
  there.start(threads);
  back.start(threads);
}

// Messages that exceed their receive, small and large ones, between others.
TEST_P(DeviceMessagesTest, WhatIsTooLongIsAnErrorAndTheLaneStaysInStep) {
  TwoSides sides(geometry(5, 1, 0));
  std::vector<Message> messages;
  Random random(3);
  for (uint64_t size : boundaries(sides.handle(0))) {
    messages.push_back({size, size});
    messages.push_back({size, size - std::min<uint64_t>(size, 1)});
    messages.push_back({size, size / 2});
    messages.push_back({size, 0});
    messages.push_back({random.below(200), 400});
  }
  // In a head. The targets have every alignment.
  for (uint64_t i = 0; i < 256; ++i) messages.push_back({i / 16 % 2 * 4 + 4, i / 32});
  Flow there(sides, 0, course(messages, 3));
  Threads threads;
  there.start(threads);
}

// As receives of up to the small size are compiled for streams.
TEST_P(DeviceMessagesTest, AReceiveOfASmallMessageRefusesALargeOne) {
  Geometry narrow = geometry(5, 2, first_positions(5)[1]);
  narrow.small_max = 100;
  TwoSides sides(narrow);
  std::vector<Message> messages;
  for (uint64_t size : boundaries(sides.handle(0))) {
    messages.push_back({size, std::min<uint64_t>(size, 100)});
    messages.push_back({size, std::min<uint64_t>(size, 100) / 2});
    messages.push_back({size % 100, 100});
  }
  Course there = course(messages, 5);
  there.small = true;
  Flow flow(sides, 0, there);
  Threads threads;
  flow.start(threads);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, DeviceMessagesTest,
    ::testing::Values(Way{"OneThread", {}, {}, 1, false}, Way{"OneThreadSingle", {}, {}, 7, true},
                      Way{"Threads", {1, 3}, {1, 2}, 1, false},
                      Way{"ThreadsManyATake", {1, 2}, {1, 3}, 9, false},
                      Way{"ThreadsManyATakeSingle", {1, 3}, {1, 2}, 1000, true},
                      Way{"Teams", {2, 2}, {2, 1}, 1, false},
                      Way{"TeamsSingle", {2, 1}, {3, 1}, 1, true}),
    [](const auto& way) { return way.param.name; });

// As many lines as fit need no receiver, wherever in the ring they begin; then both sides receive.
TEST(DeviceMessagesBufferedTest, MessagesUpToTheMostSmallNeedNoReceiver) {
  constexpr uint32_t kShift = 4;
  TwoSides sides({.ring_shift = kShift});
  const oh_lane_handle lane = sides.handle(0);
  for (uint64_t round = 0; round < 100; ++round) {
    std::vector<uint64_t> sizes;
    Random random(round + 1);
    uint64_t left = lines_of(lane) - lines_of(lane) / 4;
    while (left > 0) {
      const uint64_t size = round % 4 == 0 ? most_small(lane) : random.below(most_small(lane));
      if (lines_for(size) > left) break;
      left -= lines_for(size);
      sizes.push_back(size);
    }
    Course course{.messages = messages_of(sizes, true), .per_take = 1 + round % 3, .salt = round};
    Flow there(sides, 0, course);
    course.salt += 1000;
    Flow back(sides, 1, course);
    Threads threads;
    there.start_senders(threads);
    back.start_senders(threads);
    threads.join();
    there.start_receivers(threads);
    back.start_receivers(threads);
  }
}

// The receiver returns credit lazily, but always enough for the largest small message.
TEST(DeviceMessagesBufferedTest, TheMostSmallFitsWhateverWasReadBefore) {
  for (uint32_t shift : {2u, 3u, 5u}) {
    for (uint64_t before = 0; before < uint64_t{2} << shift; ++before) {
      TwoSides sides({.ring_shift = shift});
      const uint64_t most = most_small(sides.handle(0));
      std::vector<Message> messages(before, {8, 8});
      messages.insert(messages.end(), 3, {most, most});
      Flow flow(sides, 0, {.messages = messages});
      Threads threads;
      flow.start(threads);
      threads.join();
      EXPECT_EQ(sides.memory(0).tx.chunks, 0u) << "all of it is small";
    }
  }
}

// Both sides first send and then receive, as a kernel may.
TEST(DeviceMessagesBufferedTest, BothSidesSendThenReceive) {
  TwoSides sides({.ring_shift = 6, .epoch = 255, .position = first_positions(6)[2]});
  Threads threads;
  for (int side : {0, 1}) {
    threads.start([&sides, side] {
      Alone alone;
      const oh_lane_handle lane = sides.handle(side);
      for (uint64_t k = 0; k < 600; ++k) {
        const uint64_t size = k * 13 % (most_small(lane) + 1);
        std::vector<uint8_t> out(size + 16, static_cast<uint8_t>(k + side));
        std::vector<uint8_t> in(size + 16);
        Sender<Delayed> sender(lane, alone.group);
        ASSERT_TRUE(sender.take(alone.group));
        sender.send(alone.group, out.data(), size);
        ASSERT_EQ(sender.give(alone.group), OH_LANE_OK);
        Receiver<Delayed> receiver(lane, alone.group);
        ASSERT_TRUE(receiver.take(alone.group));
        receiver.receive(alone.group, in.data(), size);
        ASSERT_EQ(receiver.give(alone.group), OH_LANE_OK);
        ASSERT_EQ(receiver.length, size);
        const std::vector<uint8_t> theirs(size, static_cast<uint8_t>(k + 1 - side));
        ASSERT_TRUE(std::equal(theirs.begin(), theirs.end(), in.begin())) << k;
      }
    });
  }
}

}  // namespace
}  // namespace device_messages_test
