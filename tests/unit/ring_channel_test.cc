// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/ring_channel.h"

#include <deque>

#include "sanitizers.h"
#include "unit/support.h"

namespace ring_channel_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;
using unit::Random;

// Both sides of one segment, with a channel each.
struct Rings {
  Rings() {
    Result<std::unique_ptr<Segment>> made = Segment::create(/*shared=*/false);
    EXPECT_TRUE(is_ok(made));
    first = std::move(*made);
    second = Segment::alias(*first);
    first->take_side(0, false);
    second->take_side(1, false);
    out = std::make_unique<RingChannel>(*first);
    in = std::make_unique<RingChannel>(*second);
  }
  std::unique_ptr<Segment> first;
  std::unique_ptr<Segment> second;
  std::unique_ptr<RingChannel> out;
  std::unique_ptr<RingChannel> in;
};

// A frame and its bytes, derived from a number, so that both sides can make them.
struct Made {
  Frame frame;
  Bytes payload;
};

Made make(uint64_t number) {
  Random random(number + 1);
  Made made;
  Frame& frame = made.frame;
  frame.tag = random.next();
  uint64_t kind = random.below(4);
  if (kind < 2) {  // a complete message
    frame.type = FrameType::kEager;
    size_t most = kind ? RingChannel::kMaxPayload : 64;
    made.payload = random.bytes(random.below(most + 1));
    frame.length = made.payload.size();
    return made;
  }
  frame.type = static_cast<FrameType>(1 + random.below(15));
  frame.flags = static_cast<uint8_t>(random.next() & ~uint64_t{kShort});
  frame.length = random.next() | 1 << 20;
  frame.op = random.next();
  frame.address = random.next();
  frame.slot = static_cast<uint32_t>(random.next());
  frame.number = static_cast<uint32_t>(random.next());
  frame.region = static_cast<uint32_t>(random.next());
  frame.aux = static_cast<uint32_t>(random.next());
  if (kind == 3) made.payload = random.bytes(random.below(RingChannel::kMaxPayload + 1));
  return made;
}

bool push(RingChannel& channel, Made& made) {
  made.frame.payload = made.payload.data();
  made.frame.payload_size = made.payload.size();
  return channel.push(made.frame);
}

// Takes the next frame that is not padding, and checks it.
void expect_next(RingChannel& channel, uint64_t number) {
  Frame frame;
  while (true) {
    ASSERT_TRUE(channel.ready());
    ASSERT_TRUE(is_ok(channel.peek(&frame)));
    if (frame.type != FrameType::kPad) break;
    channel.pop();
  }
  Made made = make(number);
  ASSERT_EQ(frame.type, made.frame.type) << number;
  ASSERT_EQ(frame.tag, made.frame.tag);
  ASSERT_EQ(frame.length, made.frame.length);
  ASSERT_EQ(frame.payload_size, made.payload.size());
  bool message =
      made.frame.type == FrameType::kEager && made.frame.length <= RingChannel::kMaxPayload;
  if (!message) {
    ASSERT_EQ(frame.flags, made.frame.flags);
    ASSERT_EQ(frame.op, made.frame.op);
    ASSERT_EQ(frame.address, made.frame.address);
    ASSERT_EQ(frame.slot, made.frame.slot);
    ASSERT_EQ(frame.number, made.frame.number);
    ASSERT_EQ(frame.region, made.frame.region);
    ASSERT_EQ(frame.aux, made.frame.aux);
  }
  Bytes copied(frame.payload_size);
  frame.copy_payload(copied.data(), frame.length);
  ASSERT_EQ(copied, made.payload) << number;
  channel.pop();
}

bool next_is_there(RingChannel& channel) {
  while (channel.ready() && channel.skip_pad()) {
  }
  return channel.ready();
}

class RingChannelTest : public ::testing::TestWithParam<uint64_t> {};

// Frames of all kinds and sizes at any pace: all arrive, in order, with their bytes.
TEST_P(RingChannelTest, WhatIsPushedArrivesInOrder) {
  Rings link;
  Random pace(GetParam());
  uint64_t pushed = 0;
  uint64_t popped = 0;
  uint64_t refused = 0;
  while (popped < 6000) {
    for (uint64_t burst = pace.below(100); burst > 0; --burst) {
      Made made = make(pushed);
      if (!push(*link.out, made)) {
        ++refused;
        break;
      }
      ++pushed;
    }
    for (uint64_t burst = pace.below(100); burst > 0 && popped < pushed; --burst) {
      ASSERT_NO_FATAL_FAILURE(expect_next(*link.in, popped));
      ++popped;
    }
    if (popped == pushed) {
      EXPECT_FALSE(next_is_there(*link.in));
    }
  }
  EXPECT_GT(refused, 0u);
}

INSTANTIATE_TEST_SUITE_P(Paces, RingChannelTest, ::testing::Values(1, 2, 3));

TEST(RingTest, EveryShortSizeArrivesThroughBothReceivingWays) {
  Rings link;
  Random random(5);
  for (size_t size = 0; size <= RingChannel::kMaxShort + 70; ++size) {
    Bytes bytes = random.bytes(size);
    Made made;
    made.frame.type = FrameType::kEager;
    made.frame.tag = size;
    made.frame.length = size;
    made.payload = bytes;
    ASSERT_TRUE(push(*link.out, made)) << size;
    ASSERT_TRUE(next_is_there(*link.in)) << size;
    Bytes copied(size);
    size_t got = 0;
    bool given_back = false;
    EXPECT_FALSE(link.in->take_short(size + 1, copied.data(), size, &got, &given_back));
    if (size > 0) {
      EXPECT_FALSE(link.in->take_short(size, copied.data(), size - 1, &got, &given_back));
    }
    if (size % 2 && link.in->take_short(size, copied.data(), size, &got, &given_back)) {
      EXPECT_EQ(got, size);
    } else {
      Frame frame;
      ASSERT_TRUE(is_ok(link.in->peek(&frame)));
      ASSERT_EQ(frame.payload_size, size);
      frame.copy_payload(copied.data(), size);
      link.in->pop();
    }
    ASSERT_EQ(copied, bytes) << size;
    ASSERT_FALSE(next_is_there(*link.in));
  }
}

// A full ring accepts nothing, and accepts frames again after space was returned.
TEST(RingTest, AFullRingPushesBack) {
  for (size_t size :
       {size_t{0}, size_t{8}, size_t{1000}, size_t{2048}, size_t{2049}, RingChannel::kMaxPayload}) {
    Rings link;
    Made made;
    made.frame.type = FrameType::kEager;
    made.frame.length = size;
    made.payload = Random(size).bytes(size);
    uint64_t room = 0;
    while (push(*link.out, made)) ASSERT_LE(++room, kCells);
    EXPECT_GT(room, 10u) << size;
    EXPECT_FALSE(push(*link.out, made));
    // Space is returned lazily, but completely.
    for (int round = 0; round < 5; ++round) {
      uint64_t count = 0;
      while (next_is_there(*link.in)) {
        Frame frame;
        ASSERT_TRUE(is_ok(link.in->peek(&frame)));
        ASSERT_EQ(frame.length, size);
        link.in->pop();
        ++count;
      }
      EXPECT_GT(count, 0u);
      while (push(*link.out, made)) {
      }
    }
  }
}

TEST(RingTest, RoomIsReportedWhenItIsGivenBack) {
  Rings link;
  uint64_t given = 0;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(link.out->push_short(1, nullptr, 0));
    Frame frame;
    ASSERT_TRUE(is_ok(link.in->peek(&frame)));
    given += link.in->pop();
  }
  EXPECT_GE(given, 1000u * 8 / kCells - 1);
  EXPECT_LE(given, 1000u * 8 / kCells + 1);
}

TEST(RingTest, CreditGoesBack) {
  Rings link;
  EXPECT_EQ(link.out->credit_returned(), 0u);
  link.in->return_credit(100);
  link.in->return_credit(23);
  EXPECT_EQ(link.out->credit_returned(), 123u);
  EXPECT_EQ(link.in->credit_returned(), 0u);
}

// User bytes in cells are never mistaken for a frame.
TEST(RingTest, PayloadIsNeverTakenForAFrame) {
  Rings link;
  Random random(9);
  for (uint64_t i = 0; i < 3000; ++i) {
    // Words that look like upcoming sequence numbers.
    Bytes bytes(random.below(RingChannel::kMaxShort / 8) * 8);
    for (size_t at = 0; at < bytes.size(); at += 8) {
      uint64_t word = cell_word(static_cast<uint32_t>(random.below(100000)) << 1 | 1,
                                FrameType::kEager, kShort, 8);
      std::memcpy(bytes.data() + at, &word, 8);
    }
    ASSERT_TRUE(link.out->push_short(i, bytes.data(), bytes.size()));
    ASSERT_TRUE(next_is_there(*link.in));
    Frame frame;
    ASSERT_TRUE(is_ok(link.in->peek(&frame)));
    ASSERT_EQ(frame.tag, i);
    ASSERT_EQ(frame.payload_size, bytes.size());
    Bytes copied(bytes.size());
    frame.copy_payload(copied.data(), bytes.size());
    ASSERT_EQ(copied, bytes);
    link.in->pop();
    ASSERT_FALSE(next_is_there(*link.in));
  }
}

// Input that our producer never writes is a protocol error, and never a read outside of the rings.
TEST(RingTest, NonsenseInACellIsRefused) {
  struct {
    FrameType type;
    uint8_t flags;
    uint16_t short_size;
    uint32_t position;
    uint32_t size;
  } table[] = {
      {FrameType::kNone, 0, 0, 0, 0},
      {static_cast<FrameType>(static_cast<int>(FrameType::kLast) + 1), 0, 0, 0, 0},
      {static_cast<FrameType>(255), 0, 0, 0, 0},
      {FrameType::kEager, kShort, 2049, 0, 0},
      {FrameType::kEager, kShort, 65535, 0, 0},
      {FrameType::kData, kShort, 8, 0, 0},
      {FrameType::kPad, kShort, 0, 0, 0},
      {FrameType::kData, 0, 0, 0, RingChannel::kMaxPayload + 1},
      {FrameType::kData, 0, 0, 0, UINT32_MAX},
      {FrameType::kData, 0, 0, 64, 100},
      {FrameType::kData, 0, 0, kPayloadRing - 1, 100},
      {FrameType::kData, 0, 0, UINT32_MAX, 1},
  };
  for (const auto& row : table) {
    Rings link;
    Cell& cell = link.first->outgoing().cells[0];
    cell.body = FrameBody{};
    cell.body.payload_position = row.position;
    cell.body.payload_size = row.size;
    cell.word.store(cell_word(1, row.type, row.flags, row.short_size));
    ASSERT_TRUE(link.in->ready());
    Frame frame;
    EXPECT_TRUE(fails_with(link.in->peek(&frame), OH_ERR_PROTOCOL))
        << static_cast<int>(row.type) << " " << row.short_size << " " << row.size;
    uint8_t byte = 0;
    size_t size = 0;
    bool given = false;
    EXPECT_FALSE(link.in->take_short(0, &byte, 1, &size, &given));
  }
}

TEST(RingTest, AShortMessageBeyondTheEndOfTheRingIsRefused) {
  Rings link;
  for (uint32_t i = 0; i < kCells - 1; ++i) {
    ASSERT_TRUE(link.out->push_short(0, nullptr, 0));
    Frame frame;
    ASSERT_TRUE(is_ok(link.in->peek(&frame)));
    link.in->pop();
  }
  // The last cell claims to continue beyond its end.
  link.first->outgoing().cells[kCells - 1].word.store(
      cell_word((kCells - 1) << 1 | 1, FrameType::kEager, kShort, 500));
  Frame frame;
  EXPECT_TRUE(fails_with(link.in->peek(&frame), OH_ERR_PROTOCOL, "500 bytes"));
  Bytes room(500);
  size_t size = 0;
  bool given = false;
  EXPECT_FALSE(link.in->take_short(0, room.data(), room.size(), &size, &given));
}

// A peer that lies about what it has consumed gets no extra space.
TEST(RingTest, AConsumerThatLiesDoesNotLeadUsAstray) {
  for (uint64_t lie : {uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 5, uint64_t{1} << 63}) {
    Rings link;
    link.first->outgoing().consumer.cells.store(lie);
    link.first->outgoing().consumer.payload.store(lie);
    Made made;
    made.frame.type = FrameType::kEager;
    made.frame.length = RingChannel::kMaxPayload;
    made.payload.resize(RingChannel::kMaxPayload);
    for (int i = 0; i < 1000; ++i) (void)push(*link.out, made);
    for (int i = 0; i < 1000; ++i) (void)link.out->push_short(0, made.payload.data(), 2000);
  }
}

TEST(RingTest, TwoThreadsAtOnce) {
  constexpr uint64_t kFrames = kSanitized ? 3000 : 30000;
  Rings link;
  unit::Threads threads;
  threads.start([&] {
    for (uint64_t number = 0; number < kFrames; ++number) {
      Made made = make(number);
      while (!push(*link.out, made)) std::this_thread::yield();
    }
  });
  for (uint64_t number = 0; number < kFrames; ++number) {
    while (!next_is_there(*link.in)) std::this_thread::yield();
    expect_next(*link.in, number);
    if (::testing::Test::HasFatalFailure()) std::abort();  // the other thread would wait for ever
  }
}

}  // namespace
}  // namespace ring_channel_test
