// SPDX-License-Identifier: Apache-2.0
//
// A peer that lies loses its link and nothing more. Each test is one lie; the fuzzer of the same
// name tries many at once. The sanitizers see what an assertion cannot.
#include "fuzz/victim.h"
#include "unit/support.h"

namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

constexpr uint64_t kName = uint64_t{1} << 32;

class LyingPeerTest : public ::testing::Test {
 protected:
  // Behind a segment, both sides reach each other.
  LyingPeerTest() : victim_(/*segment=*/true, /*reach=*/3), ring_(*victim_.segment()) {}

  void say(FrameType type, uint64_t tag, uint64_t length, uint64_t op, size_t payload = 0,
           uint32_t aux = 0) {
    Bytes bytes(payload, 5);
    Frame frame;
    frame.type = type;
    frame.tag = tag;
    frame.length = length;
    frame.op = op;
    frame.aux = aux;
    frame.payload = bytes.data();
    frame.payload_size = payload;
    ASSERT_TRUE(ring_.push(frame));
    victim_.progress();
  }
  ::testing::AssertionResult lost() { return fails_with(victim_.peer().usable(), OH_ERR_PROTOCOL); }
  TransferSlot* posted_slot() {
    for (TransferSlot& slot : victim_.segment()->incoming().slots) {
      if (slot_state(slot.word.load()) == SlotState::kPosted) return &slot;
    }
    ADD_FAILURE() << "nothing was posted";
    return nullptr;
  }
  void claim(TransferSlot* slot) {
    ASSERT_TRUE(slot_advance(*slot, slot_sequence(slot->word.load()), SlotState::kPosted,
                             SlotState::kClaimed));
    victim_.progress();
  }

  fuzz::Victim victim_;
  RingChannel ring_;
};

// The rest of the first message would find nobody, and its early part nobody to wait for.
TEST_F(LyingPeerTest, OneNameForTwoMessages) {
  say(FrameType::kEager, 1, 100, kName, 50);
  say(FrameType::kEager, 2, 100, 2 * kName, 50);
  EXPECT_TRUE(lost());
  victim_.post_recv(1, 100, false);
}

TEST_F(LyingPeerTest, OneNameForTwoAnnouncements) {
  say(FrameType::kRts, 1, 100, kName);
  say(FrameType::kRts, 1, 100, kName);
  victim_.post_recv(1, 100, false);
  victim_.post_recv(1, 100, false);
  victim_.progress();
  EXPECT_TRUE(is_ok(victim_.peer().usable()));
}

// More than a sender may send before its receive is known would be memory that it makes us take.
TEST_F(LyingPeerTest, AnEagerMessageThatIsFarTooLong) {
  say(FrameType::kEager, 1, UINT32_MAX, kName, 50);
  EXPECT_TRUE(lost());
}

TEST_F(LyingPeerTest, MoreBytesThanWereAnnounced) {
  victim_.post_recv(1, 100, false);
  say(FrameType::kEager, 1, 100, kName, 99);
  say(FrameType::kData, 0, 0, kName, 2);
  EXPECT_TRUE(lost());
}

// The length of our buffer is not read back from where the other side can write.
TEST_F(LyingPeerTest, ASlotThatGrows) {
  victim_.post_send(1, 70000);
  TransferSlot* slot = posted_slot();
  slot->owner_length = uint64_t{1} << 30;
  slot->claimer_length = uint64_t{1} << 30;
  claim(slot);
  for (int i = 0; i < 20; ++i) victim_.progress();
}

TEST_F(LyingPeerTest, AReceiveThatGrows) {
  victim_.post_recv(1, 70000, false);
  TransferSlot* slot = posted_slot();
  slot->owner_length = uint64_t{1} << 30;
  slot->claimer_length = uint64_t{1} << 30;
  claim(slot);
  for (int i = 0; i < 20; ++i) victim_.progress();
}

// A cursor whose halves wrap around in their sum names a chunk outside of the buffer.
TEST_F(LyingPeerTest, ACursorThatWrapsAround) {
  for (uint64_t cursor : {uint64_t{1} << 32 | 0xffffffff, uint64_t{0xffffffff} << 32 | 1,
                          UINT64_MAX, uint64_t{0x80000000} << 32 | 0x80000000}) {
    for (bool send : {true, false}) {
      fuzz::Victim victim(true, 3);
      send ? victim.post_send(1, 300000) : victim.post_recv(1, 300000, false);
      for (TransferSlot& slot : victim.segment()->incoming().slots) {
        slot.claimer_length = 300000;
        slot_advance(slot, slot_sequence(slot.word.load()), SlotState::kPosted,
                     SlotState::kClaimed);
        slot.cursor.store(cursor);
      }
      for (int i = 0; i < 10; ++i) victim.progress();
    }
  }
}

TEST_F(LyingPeerTest, StatusesThatDoNotExist) {
  for (uint32_t code : {1u, 99u, 0x7fffffffu, 0x80000000u, 0xdadadadau}) {
    fuzz::Victim victim(true, 0);
    RingChannel ring(*victim.segment());
    victim.post_send(1, 70000);
    victim.post_one_sided(true, 100, true);
    for (FrameType type : {FrameType::kReject, FrameType::kAck, FrameType::kComplaint}) {
      for (uint64_t index : {0, 1}) {
        Frame frame;
        frame.type = type;
        frame.op = kName | index;
        frame.aux = code;
        ASSERT_TRUE(ring.push(frame));
      }
    }
    victim.progress();
    EXPECT_TRUE(fails_with(victim.peer().take_async_error(), OH_ERR_PROTOCOL));
  }
  EXPECT_EQ(slot_status(slot_word(1, SlotState::kDone) | uint64_t{0xda} << 16), OH_ERR_PROTOCOL);
}

TEST_F(LyingPeerTest, ItsOwnDeathIsNoticed) {
  victim_.post_recv(1, 100, false);
  victim_.segment()->advance(SideState::kFailed);
  victim_.progress();
  EXPECT_TRUE(fails_with(victim_.peer().usable(), OH_ERR_PEER_LOST));
}

}  // namespace
