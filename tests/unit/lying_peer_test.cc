// SPDX-License-Identifier: Apache-2.0
//
// A peer that lies loses only its link. Each test is one lie; the fuzzer of the same name tries
// many in combination. The sanitizers detect errors that no assertion can.
#include <algorithm>

#include "calls/batch_messages.h"
#include "fuzz/victim.h"
#include "sanitizers.h"
#include "unit/support.h"
#include "unit/traffic.h"

namespace lying_peer_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

constexpr uint64_t kName = uint64_t{1} << 32;

class LyingPeerTest : public ::testing::Test {
 protected:
  // With a segment, each side can access the other's memory.
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

// The rest of the first message would match no receive, and its first part would wait for ever.
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

// More bytes than an eager sender may send would let it exhaust our memory.
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

// The receive waits for the Abort of its withdrawn message, and has no room for that many bytes.
// Its length must not be read from memory that the peer can write.
TEST_F(LyingPeerTest, BytesOfAMessageThatWasWithdrawn) {
  Bytes memory(65536, 0xee);
  Request receive;
  unit::prepare(&receive, OpKind::kRecv, victim_.endpoint(), memory.data(), 100, 1);
  ASSERT_TRUE(is_ok(victim_.peer().operations().messages().post_recv(&receive)));
  Frame rts;
  rts.type = FrameType::kRts;
  rts.tag = 1;
  rts.length = 60000;
  rts.op = kName;
  rts.slot = 5;  // no such slot is posted
  rts.number = 77;
  ASSERT_TRUE(ring_.push(rts));
  victim_.progress();
  say(FrameType::kData, 0, 0, kName, 16000);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), 0xee), 65536);
  EXPECT_TRUE(lost());
  EXPECT_TRUE(receive.ended());
}

// The mode of a copy comes from the peer: there is no local slab, nor a device.
TEST_F(LyingPeerTest, APartOfASlabThatWeDoNotHave) {
  victim_.post_recv(1, 70000, false);
  TransferSlot* slot = posted_slot();
  ASSERT_NE(slot, nullptr);
  const uint32_t sequence = slot_sequence(slot->word.load());
  slot->claimer_length = 70000;
  slot->claimer_memory = kSlotDevice;
  slot->mode.store(static_cast<uint32_t>(CopyMode::kStaged));
  claim(slot);
  const auto index = static_cast<uint32_t>(slot - victim_.segment()->incoming().slots);
  PipeLine& line = victim_.segment()->outgoing_pipe().lines[0];
  line.span = {0, 100, index, sequence, 0, 1};
  line.word.store(pipe_full(0));
  victim_.progress();
  EXPECT_EQ(line.word.load(), pipe_empty(0)) << "it was not looked at";
}

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

// A cursor whose halves overflow in their sum names a chunk outside of the buffer.
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
    for (FrameType type : {FrameType::kReject, FrameType::kAck, FrameType::kNack}) {
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

// An operation over slots ends with its slots, whatever a frame with its name says.
TEST_F(LyingPeerTest, TheNameOfAnOperationBySlots) {
  victim_.post_one_sided(/*put=*/true, 100, false, /*to_device=*/true);
  say(FrameType::kAck, 0, 0, kName);
  EXPECT_EQ(victim_.pending(), 1u);
  claim(posted_slot());
  EXPECT_TRUE(is_ok(victim_.peer().usable()));
}

TEST_F(LyingPeerTest, ItsOwnDeathIsNoticed) {
  victim_.post_recv(1, 100, false);
  victim_.segment()->advance(SideState::kFailed);
  victim_.progress();
  EXPECT_TRUE(fails_with(victim_.peer().usable(), OH_ERR_PEER_LOST));
}

// ---- Many names -------------------------------------------------------------------------------
// Look-ups use keys: if each frame walked a list of all entries, the watchdog would end these
// tests.

class ManyNames : public LyingPeerTest {
 protected:
  static constexpr uint64_t kMany = kSanitized ? 100'000 : 400'000;

  void flood(FrameType type, uint64_t tag, uint64_t op, uint8_t flags = 0, uint32_t aux = 0) {
    Frame frame;
    frame.type = type;
    frame.tag = tag;
    frame.length = 100;
    frame.op = op;
    frame.flags = flags;
    frame.aux = aux;
    while (!ring_.push(frame)) work();
  }
  // Also reads the victim's frames.
  void work() {
    victim_.progress();
    Frame frame;
    while (ring_.ready() && ring_.peek(&frame).ok()) ring_.pop();
  }
  void announce(uint64_t first_tag, uint64_t tags) {
    for (uint64_t i = 0; i < kMany; ++i) flood(FrameType::kRts, first_tag + i % tags, kName + i);
  }
  // Returns the number of unexpected messages, after all frames were handled.
  size_t early() {
    while (victim_.peer().link().has_frames()) work();
    const std::string text = victim_.peer().describe(nullptr);
    return std::stoul(text.substr(text.find("posted, ") + 8));
  }
};

TEST_F(ManyNames, AnnouncementsThatAreTakenBack) {
  for (uint64_t tags : {uint64_t{1}, kMany}) {
    announce(1, tags);
    EXPECT_EQ(early(), kMany);
    for (uint64_t i = kMany; i-- > 0;) flood(FrameType::kReady, 0, kName + i);
    for (uint64_t i = kMany; i-- > 0;) flood(FrameType::kAbort, 0, kName + i);
    EXPECT_EQ(early(), 0u);
  }
  EXPECT_TRUE(is_ok(victim_.peer().usable()));
}

// Messages with the library's own tags are queued before offers.
TEST_F(ManyNames, OffersThatAreTakenBack) {
  announce(MessageBatches::offer_tag(3), 1);
  const uint64_t name = kName + kMany;
  const Bytes offer(reinterpret_cast<const uint8_t*>(&name),
                    reinterpret_cast<const uint8_t*>(&name + 1));
  Frame frame;
  frame.type = FrameType::kEager;
  frame.tag = MessageBatches::offer_tag(3);
  frame.length = frame.payload_size = offer.size();
  frame.payload = offer.data();
  while (!ring_.push(frame)) work();
  for (uint64_t i = 0; i < kMany; ++i) {
    flood(FrameType::kAbort, MessageBatches::offer_tag(3), kName + i, kOffer);
  }
  // Nor is it found under another tag.
  flood(FrameType::kAbort, MessageBatches::offer_tag(4), name, kOffer);
  EXPECT_EQ(early(), kMany + 1);
  flood(FrameType::kAbort, MessageBatches::offer_tag(3), name, kOffer);
  EXPECT_EQ(early(), kMany);
}

TEST_F(ManyNames, EpochsOfManyTags) {
  announce(1, kMany);
  for (uint32_t epoch = 1; epoch <= kMany; ++epoch) flood(FrameType::kEpoch, 0, 0, 0, epoch);
  EXPECT_EQ(early(), kMany);
  EXPECT_TRUE(is_ok(victim_.peer().usable()));
}

// The name of the message has the highest possible index.
TEST_F(ManyNames, ReceivesThatAreGivenUp) {
  constexpr uint64_t kLast = (1 << 20) - 1;
  for (uint64_t i = 0; i < kMany; ++i) {
    const uint64_t name = (i + 1) << 32 | kLast;
    victim_.post_recv(2, 100, false);
    say(FrameType::kEager, 2, 100, name, 50);
    victim_.cancel_oldest(/*give_up=*/true);
    Bytes rest(50);
    Frame frame;
    frame.type = FrameType::kData;
    frame.op = name;
    frame.address = 50;
    frame.payload = rest.data();
    frame.payload_size = rest.size();
    while (!ring_.push(frame)) work();
    work();
    ASSERT_EQ(victim_.pending(), 0u);
  }
  EXPECT_TRUE(is_ok(victim_.peer().usable()));
}

// ---- Batches as messages ----------------------------------------------------------------------

class LyingAboutBatches : public LyingPeerTest {
 protected:
  LyingAboutBatches() {
    request_.kind = OpKind::kRecvBatch;
    request_.endpoint = &victim_.endpoint();
    request_.data = local_.memory = bytes_;
    request_.size = local_.bytes = local_.size = local_.blocks.length = sizeof(bytes_);
    local_.blocks.count = 1;
  }
  ~LyingAboutBatches() override {
    if (request_.peer) (void)victim_.endpoint().requests().cancel(&request_).ok();
    victim_.peer().close();
  }
  void post() {
    ASSERT_TRUE(is_ok(post_batch(victim_.endpoint(), victim_.peer(), &request_, local_, {},
                                 Deadline::after(kSecond))));
  }
  // The word of the receive's region, which the peer may write.
  std::atomic<uint64_t>& word() {
    uint32_t index = 0;
    while (victim_.endpoint().control_page()->region(index).load() !=
           victim_.region().version + 1) {
      ++index;
    }
    return victim_.endpoint().control_page()->region(index);
  }
  // Returns the result of a batch for which the peer makes this offer.
  Status send_into(const Bytes& offer) {
    Frame frame;
    frame.type = FrameType::kEager;
    frame.tag = MessageBatches::offer_tag(3);
    frame.length = frame.payload_size = offer.size();
    frame.payload = offer.data();
    EXPECT_TRUE(ring_.push(frame));
    return BatchSend(victim_.endpoint(), victim_.peer(), local_, 3)
        .run({}, Deadline::after(100 * kMillisecond));
  }

  uint8_t bytes_[100] = {};
  LocalBlocks local_;
  Request request_;
};

TEST_F(LyingAboutBatches, AnEndThatNobodyWaitsFor) {
  post();
  victim_.post_recv(1, 70000, false);
  for (uint64_t op : {uint64_t{0}, request_.op + kName, request_.op + 1, UINT64_MAX}) {
    say(FrameType::kBatchEnd, 0, 8, op);
  }
  EXPECT_FALSE(request_.ended());
  EXPECT_TRUE(is_ok(victim_.peer().usable()));
  word().fetch_or(kTakenBit);
  say(FrameType::kBatchEnd, 0, 8, request_.op);
  EXPECT_TRUE(request_.ended());
  EXPECT_EQ(request_.nbytes, 8u);
}

TEST_F(LyingAboutBatches, AnEndWithoutABeginning) {
  post();
  say(FrameType::kBatchEnd, 0, 8, request_.op);
  EXPECT_TRUE(lost());
  EXPECT_TRUE(fails_with(request_.status, OH_ERR_PROTOCOL));
}

// The sender has finished, but its last message is still in flight: the receive must not fail on
// this side alone.
TEST_F(LyingAboutBatches, AReceiveThatIsWholeIsNotGivenUp) {
  post();
  word().store(whole_word(8, OH_PATH_SHM));
  Status late = error(OH_ERR_TIMEOUT, "late");
  EXPECT_FALSE(victim_.peer().operations().try_end(&request_, late, Operations::Force::kCancel));
  EXPECT_TRUE(victim_.peer().operations().try_end(&request_, late, Operations::Force::kGiveUp));
  EXPECT_TRUE(is_ok(request_.status));
  EXPECT_EQ(request_.nbytes, 8u);
  EXPECT_EQ(request_.path, OH_PATH_SHM);
}

TEST_F(LyingAboutBatches, AWholeOfMoreThanThereIsRoomFor) {
  post();
  word().store(whole_word(101, OH_PATH_SHM));
  Status late = error(OH_ERR_TIMEOUT, "late");
  EXPECT_TRUE(victim_.peer().operations().try_end(&request_, late, Operations::Force::kGiveUp));
  EXPECT_TRUE(fails_with(request_.status, OH_ERR_TIMEOUT));
}

// Large offers without a slot, whose bytes the receiver never requests.
TEST_F(LyingAboutBatches, OffersThatNobodyReadsDoNotPileUp) {
  fuzz::Victim victim(/*segment=*/true, /*reach=*/0);
  std::vector<uint64_t> nothing(5000, 0);
  local_.blocks = {nothing.size(), nothing.data(), nothing.data()};
  ASSERT_TRUE(is_ok(post_batch(victim.endpoint(), victim.peer(), &request_, local_, {},
                               Deadline::after(kSecond))));
  EXPECT_EQ(victim.peer().link().pending_sends, 1u);
  EXPECT_TRUE(is_ok(victim.endpoint().requests().cancel(&request_)));
  EXPECT_TRUE(fails_with(request_.status, OH_ERR_CANCELLED));
  EXPECT_EQ(victim.peer().link().pending_sends, 0u);
}

// An offer that is withdrawn while it arrives, followed by a longer one, which must be read.
TEST_F(LyingAboutBatches, OffersThatAreTakenBackMakeWay) {
  say(FrameType::kRts, MessageBatches::offer_tag(3), 70000, kName);
  Request fetch;
  fetch.kind = OpKind::kRecv;
  fetch.endpoint = &victim_.endpoint();
  Bytes bytes;
  ASSERT_TRUE(*victim_.peer().operations().batches().fetch_offer(&fetch, 3, &bytes));
  say(FrameType::kRts, MessageBatches::offer_tag(3), 80000, kName + 1);
  say(FrameType::kAbort, 0, 0, kName);
  EXPECT_TRUE(fails_with(fetch.status, OH_ERR_RETIRED));
  Request next;
  next.kind = OpKind::kRecv;
  next.endpoint = &victim_.endpoint();
  ASSERT_TRUE(*victim_.peer().operations().batches().fetch_offer(&next, 3, &bytes));
  EXPECT_EQ(next.size, 80000u);
  EXPECT_FALSE(next.ended());
  victim_.peer().close();
}

// The first offer's slot is withdrawn before the frame about it arrives.
TEST_F(LyingAboutBatches, OffersAreMeasuredAgainWhenOneIsGone) {
  Frame frame;
  frame.type = FrameType::kRts;
  frame.tag = MessageBatches::offer_tag(3);
  frame.length = 70000;
  frame.op = kName;
  frame.slot = 0;
  frame.number = 1;  // no such slot is posted
  ASSERT_TRUE(ring_.push(frame));
  frame.length = 80000;
  frame.op = kName + 1;
  frame.slot = kNoSlot;
  ASSERT_TRUE(ring_.push(frame));
  victim_.progress();
  Request fetch;
  fetch.kind = OpKind::kRecv;
  fetch.endpoint = &victim_.endpoint();
  Bytes bytes;
  ASSERT_TRUE(*victim_.peer().operations().batches().fetch_offer(&fetch, 3, &bytes));
  EXPECT_EQ(fetch.size, 80000u);
  EXPECT_FALSE(fetch.ended());
  victim_.peer().close();
}

TEST_F(LyingAboutBatches, MoreThanThereIsRoomFor) {
  post();
  say(FrameType::kBatchEnd, 0, 101, request_.op);
  EXPECT_TRUE(lost());
  EXPECT_TRUE(request_.ended());
}

TEST_F(LyingAboutBatches, AFailureThatIsNone) {
  post();
  say(FrameType::kBatchEnd, 0, UINT64_MAX, request_.op, 0, 12345);
  say(FrameType::kBatchEnd, 0, UINT64_MAX, request_.op, 0, 12345);
  EXPECT_TRUE(request_.ended());
  EXPECT_FALSE(request_.status.ok());
}

TEST_F(LyingAboutBatches, AnOfferThatIsNone) {
  EXPECT_TRUE(fails_with(send_into(Bytes(50, 7)), OH_ERR_PROTOCOL));
  EXPECT_TRUE(lost());
}

TEST_F(LyingAboutBatches, AnOfferOfBlocksOutsideOfTheRegion) {
  RegionDescriptor descriptor;
  descriptor.endpoint = victim_.peer().identity().endpoint;
  descriptor.index = victim_.region().index;
  descriptor.version = victim_.region().version;
  descriptor.record.base = reinterpret_cast<uint64_t>(victim_.region().base);
  descriptor.record.length = victim_.region().length;
  descriptor.record.chunks.push_back({0, victim_.region().length, ChunkKind::kPrivate, {}});
  BlockLayout blocks;
  blocks.count = 2;
  blocks.stride = victim_.region().length - 50;
  blocks.length = 51;
  EXPECT_TRUE(
      fails_with(send_into(BatchOffer::encode(descriptor.encode(), blocks)), OH_ERR_PROTOCOL));
  EXPECT_TRUE(lost());
}

TEST_F(LyingAboutBatches, AnOfferWithoutARegion) {
  BlockLayout blocks;
  blocks.count = 1;
  blocks.length = 100;
  EXPECT_TRUE(
      fails_with(send_into(BatchOffer::encode(as_bytes("a region"), blocks)), OH_ERR_INVALID));
  EXPECT_TRUE(is_ok(victim_.peer().usable()));
}

}  // namespace
}  // namespace lying_peer_test
