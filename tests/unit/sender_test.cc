// SPDX-License-Identifier: Apache-2.0
//
// Sender: eager, announced and streamed messages over a channel without a peer.
#include "message/sender.h"

#include <algorithm>

#include "link/memory_exchange.h"
#include "transport/local/local_mover.h"
#include "unit/message_test.h"
#include "unit/support.h"

namespace sender_test {
namespace {

using namespace oh;
using unit::is_ok;

class SenderTest : public unit::MessageTest {
 protected:
  Request& post(uint64_t tag, Bytes& buffer) {
    Request& send = request(OpKind::kSend, tag, buffer);
    LinkGuard guard(link_);
    sender_.post(&send);
    return send;
  }
  void progress() {
    LinkGuard guard(link_);
    (void)link_.outbox.flush();
    (void)sender_.progress();
  }
  void answer(FrameType type, const Request& send, uint64_t length = 0, uint64_t border = 0) {
    Frame frame;
    frame.type = type;
    frame.op = send.op;
    frame.length = length;
    frame.address = border;
    frame.aux = static_cast<uint32_t>(OH_ERR_TRUNCATED);
    LinkGuard guard(link_);
    type == FrameType::kCts ? sender_.on_cts(frame) : sender_.on_reject(frame);
  }
  bool cancel(Request& send) {
    LinkGuard guard(link_);
    return sender_.cancel(&send, error(OH_ERR_CANCELLED, "enough"), /*give_up=*/false);
  }
  size_t count(FrameType type) const {
    const std::vector<FrameType> types = channel_.types();
    return static_cast<size_t>(std::count(types.begin(), types.end(), type));
  }

  StagingPipeline pipeline_{link_};
  Sender sender_{link_, transfers_, pipeline_};
  Bytes small_ = Bytes(100);
  Bytes large_ = Bytes(20000);
};

TEST_F(SenderTest, ASmallMessageIsSentEagerly) {
  Request& send = post(1, small_);
  ASSERT_TRUE(send.ended());
  EXPECT_TRUE(is_ok(send.status));
  EXPECT_EQ(send.nbytes, 100u);
  EXPECT_EQ(channel_.types(), std::vector{FrameType::kEager});
  EXPECT_EQ(channel_.frames.back().payload_size, 100u);
  EXPECT_TRUE(sender_.idle());
}

TEST_F(SenderTest, ALargeMessageIsAnnounced) {
  Request& send = post(1, large_);
  EXPECT_FALSE(send.ended());
  EXPECT_EQ(send.phase, Phase::kOffered);
  EXPECT_EQ(channel_.types(), std::vector{FrameType::kRts});
  EXPECT_EQ(channel_.frames.back().length, 20000u);
}

// Without credit a small message is announced too: no send waits for credit.
TEST_F(SenderTest, WithoutCreditASmallMessageIsAnnounced) {
  link_.theirs.eager_credit = eager_charge(100);
  post(1, small_);
  post(1, small_);
  EXPECT_EQ(channel_.types(), (std::vector{FrameType::kEager, FrameType::kRts}));
  EXPECT_EQ(link_.stats.out_of_credit, 1u);
  channel_.returned = eager_charge(100);
  post(1, small_);
  EXPECT_EQ(channel_.frames.back().type, FrameType::kEager);
}

TEST_F(SenderTest, MessagesWaitForRoomInTheirOrder) {
  channel_.room = false;
  Request& first = post(1, large_);
  Request& second = post(2, small_);
  EXPECT_FALSE(second.ended());
  EXPECT_FALSE(sender_.idle());
  channel_.room = true;
  progress();
  EXPECT_EQ(channel_.types(), (std::vector{FrameType::kRts, FrameType::kEager}));
  EXPECT_EQ(first.phase, Phase::kOffered);
  EXPECT_TRUE(second.ended());
}

TEST_F(SenderTest, AMessageThatAFaultyPeerClaimsBeforeItsFrameIsUnderWay) {
  LinkFacts facts;
  facts.segment = facts.same_process = facts.we_reach_them = facts.they_reach_us = true;
  facts.eager_max = facts.their_eager_max = 1024;
  facts.eager_credit = 4096;
  selection_ = MessageSelection(facts);
  std::unique_ptr<Segment> segment = std::move(*Segment::create(/*shared=*/false));
  const std::unique_ptr<Segment> theirs = Segment::alias(*segment);
  segment->take_side(0, /*loopback=*/false);
  theirs->take_side(1, /*loopback=*/false);
  link_.segment = std::move(segment);
  link_.path = OH_PATH_LOCAL;
  link_.mover = std::make_unique<LocalMover>();
  MemoryExchange memory(link_, nullptr, Id{}, {});
  link_.memory = &memory;
  transfers_.start(nullptr);
  channel_.room = false;
  channel_.when_full = [&](const Frame& frame) {
    TransferSlot& slot = theirs->incoming().slots[frame.slot];
    EXPECT_TRUE(slot_advance(slot, frame.number, SlotState::kPosted, SlotState::kClaimed));
  };
  Request& send = post(1, large_);
  EXPECT_EQ(send.phase, Phase::kDirect);
  EXPECT_TRUE(sender_.idle()) << "it is not sent again";
  LinkGuard guard(link_);
  EXPECT_TRUE(transfers_.end(send.transfer, error(OH_ERR_TIMEOUT, "late"), /*give_up=*/true));
}

TEST_F(SenderTest, ACtsStreamsTheWholeMessage) {
  Request& send = post(1, large_);
  answer(FrameType::kCts, send);
  EXPECT_FALSE(send.ended());
  progress();
  EXPECT_TRUE(send.ended());
  EXPECT_TRUE(is_ok(send.status));
  EXPECT_EQ(count(FrameType::kData), 5u);  // of 4096 bytes
}

// No part crosses a multiple of the border, and none exceeds the grant.
TEST_F(SenderTest, ACtsSaysHowFar) {
  Request& send = post(1, large_);
  answer(FrameType::kCts, send, 6000, 3000);
  progress();
  EXPECT_EQ(count(FrameType::kData), 2u);
  EXPECT_EQ(channel_.frames.back().address, 3000u);
  EXPECT_EQ(channel_.frames.back().payload_size, 3000u);
  answer(FrameType::kCts, send, 20000, 3000);
  progress();
  EXPECT_TRUE(send.ended());
  EXPECT_EQ(count(FrameType::kData), 7u);
}

TEST_F(SenderTest, ARejectedMessageEndsItsSend) {
  Request& send = post(1, large_);
  answer(FrameType::kReject, send, 10);
  EXPECT_TRUE(unit::fails_with(send.status, OH_ERR_TRUNCATED, "has room for 10"));
  EXPECT_EQ(count(FrameType::kAbort), 0u);
  EXPECT_TRUE(sender_.idle());
}

// The receiver rejects while parts are in flight: the rest is withdrawn.
TEST_F(SenderTest, ARejectedStreamIsAborted) {
  Request& send = post(1, large_);
  answer(FrameType::kCts, send, 4096);
  progress();
  answer(FrameType::kReject, send);
  EXPECT_EQ(send.status.code(), OH_ERR_TRUNCATED);
  EXPECT_EQ(channel_.frames.back().type, FrameType::kAbort);
  EXPECT_TRUE(sender_.idle());
}

TEST_F(SenderTest, AQueuedSendIsCancelledSilently) {
  channel_.room = false;
  Request& send = post(1, small_);
  EXPECT_TRUE(cancel(send));
  EXPECT_EQ(send.status.code(), OH_ERR_CANCELLED);
  channel_.room = true;
  post(1, small_);
  EXPECT_EQ(channel_.types(), std::vector{FrameType::kEager});
}

// Its number will not arrive: the next message begins an epoch, a single one for all withdrawn
// messages.
TEST_F(SenderTest, CancellingAnAnnouncedSendBeginsAnEpoch) {
  Request& first = post(1, large_);
  Request& second = post(1, large_);
  EXPECT_TRUE(cancel(first));
  EXPECT_TRUE(cancel(second));
  EXPECT_EQ(count(FrameType::kAbort), 2u);
  EXPECT_EQ(count(FrameType::kEpoch), 0u);
  post(1, small_);
  EXPECT_EQ(count(FrameType::kEpoch), 1u);
  EXPECT_EQ(channel_.frames.back().type, FrameType::kEager);
  EXPECT_EQ(channel_.frames.back().number, 0u);
  EXPECT_EQ(channel_.frames.back().aux, 1u);
}

TEST_F(SenderTest, NothingPassesTheFrameOfAnEpoch) {
  EXPECT_TRUE(cancel(post(1, large_)));
  channel_.room = false;
  post(1, small_);
  channel_.room = true;
  progress();
  EXPECT_EQ(channel_.frames[2].type, FrameType::kEpoch);
  EXPECT_EQ(channel_.frames[3].type, FrameType::kEager);
}

TEST_F(SenderTest, MessagesOfATagAreNumbered) {
  post(1, small_);
  post(1, small_);
  EXPECT_EQ(channel_.frames.back().number, 1u);
  post(2, small_);
  EXPECT_EQ(channel_.frames.back().number, 0u);
}

TEST_F(SenderTest, ALateAnswerIsIgnored) {
  Request& send = post(1, large_);
  Request late;
  late.op = send.op;
  EXPECT_TRUE(cancel(send));
  answer(FrameType::kCts, late);
  answer(FrameType::kReject, late);
  EXPECT_TRUE(sender_.idle());
}

TEST_F(SenderTest, SendNowNeedsATagThatIsKnownAndAnEmptyQueue) {
  EXPECT_FALSE(sender_.send_now(small_.data(), small_.size(), 1));
  post(1, small_);
  EXPECT_TRUE(sender_.send_now(small_.data(), small_.size(), 1));
  EXPECT_EQ(count(FrameType::kEager), 2u);
  channel_.room = false;
  post(1, small_);
  channel_.room = true;
  EXPECT_FALSE(sender_.send_now(small_.data(), small_.size(), 1));
}

TEST_F(SenderTest, ThereIsRoomForSoManySends) {
  for (uint32_t i = 0; i < link_.mine.max_pending; ++i) {
    EXPECT_TRUE(sender_.has_room());
    post(1, large_);
  }
  EXPECT_FALSE(sender_.has_room());
}

TEST_F(SenderTest, AnRtrNeedsASegment) {
  Frame frame;
  frame.type = FrameType::kRtr;
  frame.slot = 0;
  EXPECT_EQ(sender_.on_rtr(frame).code(), OH_ERR_PROTOCOL);
}

TEST_F(SenderTest, TheEndOfTheLinkEndsAllSends) {
  Request& announced = post(1, large_);
  Request& streams = post(1, large_);
  answer(FrameType::kCts, streams, 4096);
  channel_.room = false;
  Request& queued = post(1, small_);
  {
    LinkGuard guard(link_);
    sender_.fail_all(error(OH_ERR_PEER_LOST, "gone"));
  }
  for (const Request* send : {&announced, &streams, &queued}) {
    EXPECT_EQ(send->status.code(), OH_ERR_PEER_LOST);
  }
  EXPECT_TRUE(sender_.idle());
  EXPECT_EQ(link_.pending_sends, 0u);
}

}  // namespace
}  // namespace sender_test
