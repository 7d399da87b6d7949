// SPDX-License-Identifier: Apache-2.0
//
// Receiver: frames of messages match receives, without a peer.
#include "message/receiver.h"

#include "transport/socket/socket_channel.h"
#include "unit/message_test.h"
#include "unit/support.h"

namespace receiver_test {
namespace {

using namespace oh;
using unit::is_ok;

class ReceiverTest : public unit::MessageTest {
 protected:
  Request& post(uint64_t tag, Bytes& buffer) {
    Request& receive = request(OpKind::kRecv, tag, buffer);
    LinkGuard guard(link_);
    receiver_.post(&receive);
    return receive;
  }
  Frame eager(uint64_t tag, const Bytes& bytes, uint64_t length) {
    Frame frame;
    frame.type = FrameType::kEager;
    frame.tag = tag;
    frame.length = length;
    frame.op = kName;
    frame.payload = bytes.data();
    frame.payload_size = bytes.size();
    return frame;
  }
  Status arrive(const Frame& frame) {
    LinkGuard guard(link_);
    switch (frame.type) {
      case FrameType::kEager:
        return receiver_.on_eager(frame);
      case FrameType::kData:
        return receiver_.on_data(frame);
      case FrameType::kRts:
        return receiver_.on_rts(frame);
      default:
        return receiver_.on_abort(frame), Status();
    }
  }
  Status arrive(uint64_t tag, const Bytes& bytes) {
    return arrive(eager(tag, bytes, bytes.size()));
  }
  Status part(const Bytes& bytes, uint64_t offset) {
    Frame frame = eager(0, bytes, 0);
    frame.type = FrameType::kData;
    frame.address = offset;
    return arrive(frame);
  }
  Status announce(uint64_t tag, uint64_t length) {
    Frame frame;
    frame.type = FrameType::kRts;
    frame.tag = tag;
    frame.length = length;
    frame.op = kName;
    return arrive(frame);
  }
  Status withdraw() {
    Frame frame;
    frame.type = FrameType::kAbort;
    frame.op = kName;
    return arrive(frame);
  }

  static constexpr uint64_t kName = uint64_t{1} << 32;
  StagingPipeline pipeline_{link_};
  BounceCopies bounce_copies_{link_};
  Matcher matcher_{link_, transfers_};
  Receiver receiver_{link_, {transfers_, pipeline_, bounce_copies_, matcher_}};
  const Bytes message_ = unit::Random(1).bytes(100);
  Bytes buffer_ = Bytes(100);
};

TEST_F(ReceiverTest, AnEagerMessageEndsItsReceive) {
  Request& receive = post(1, buffer_);
  EXPECT_TRUE(is_ok(arrive(1, message_)));
  ASSERT_TRUE(receive.ended());
  EXPECT_EQ(receive.nbytes, 100u);
  EXPECT_EQ(buffer_, message_);
  EXPECT_EQ(channel_.given_back, eager_charge(100));
}

// Its credit is returned when a receive gets it.
TEST_F(ReceiverTest, AnUnexpectedMessageWaitsForItsReceive) {
  EXPECT_TRUE(is_ok(arrive(1, message_)));
  EXPECT_EQ(receiver_.unexpected(), 1u);
  EXPECT_EQ(receiver_.probe(1)->length, 100u);
  EXPECT_EQ(channel_.given_back, 0u);
  EXPECT_TRUE(post(1, buffer_).ended());
  EXPECT_EQ(buffer_, message_);
  EXPECT_EQ(channel_.given_back, eager_charge(100));
  EXPECT_FALSE(receiver_.probe(1));
}

// A thread may sleep in a probe, without a receive.
TEST_F(ReceiverTest, AnUnexpectedMessageWakesAThreadThatSleeps) {
  page_.doorbell().sleepers = 1;
  EXPECT_TRUE(is_ok(arrive(1, message_)));
  EXPECT_EQ(page_.doorbell().rings, 1u);
  EXPECT_TRUE(is_ok(announce(1, 20000)));
  EXPECT_EQ(page_.doorbell().rings, 2u);
}

// Without a segment a frame returns credit. A peer without credit sends no message whose receive
// would return the rest, so the frame waits for room.
TEST_F(ReceiverTest, CreditThatFindsNoRoomIsReturnedLater) {
  struct Sink final : MessageSink {
    size_t backlog() override { return queued; }
    Status send_message(uint8_t, ByteView head, ByteView) override {
      sent.assign(head.begin(), head.end());
      return {};
    }
    size_t queued = 1 << 20;
    Bytes sent;
  } sink;
  auto channel = std::make_unique<SocketChannel>(sink, link_.mine.eager_credit);
  link_.counted = channel.get();
  link_.outbox.attach(channel.get());
  link_.channel = std::move(channel);
  const uint64_t messages = link_.mine.eager_credit / eager_charge(message_.size());
  for (uint64_t i = 0; i < messages; ++i) EXPECT_TRUE(is_ok(arrive(1, message_)));
  for (uint64_t i = 0; i < messages; ++i) EXPECT_TRUE(post(1, buffer_).ended());
  EXPECT_TRUE(sink.sent.empty());
  sink.queued = 0;
  {
    LinkGuard guard(link_);
    EXPECT_TRUE(link_.outbox.flush());
  }
  Frame frame;
  ASSERT_TRUE(is_ok(decode_frame(sink.sent, &frame)));
  EXPECT_EQ(frame.type, FrameType::kCredit);
  EXPECT_GE(frame.length, link_.mine.eager_credit / 4);
}

TEST_F(ReceiverTest, MoreThanTheCreditIsAProtocolError) {
  EXPECT_TRUE(is_ok(arrive(eager(1, Bytes(4096), 4096))));
  EXPECT_EQ(arrive(1, message_).code(), OH_ERR_PROTOCOL);
}

TEST_F(ReceiverTest, APartGoesToTheReceiveThatWasPostedMeanwhile) {
  const Bytes begin(message_.begin(), message_.begin() + 40);
  const Bytes middle(message_.begin() + 40, message_.begin() + 70);
  const Bytes end(message_.begin() + 70, message_.end());
  EXPECT_TRUE(is_ok(arrive(eager(1, begin, 100))));
  EXPECT_TRUE(is_ok(part(middle, 40)));
  Request& receive = post(1, buffer_);
  EXPECT_FALSE(receive.ended());
  EXPECT_TRUE(is_ok(part(end, 70)));
  ASSERT_TRUE(receive.ended());
  EXPECT_EQ(buffer_, message_);
  EXPECT_EQ(channel_.given_back, eager_charge(100));
}

TEST_F(ReceiverTest, PartsComeInOrder) {
  EXPECT_TRUE(is_ok(arrive(eager(1, Bytes(40), 100))));
  EXPECT_EQ(part(Bytes(30), 50).code(), OH_ERR_PROTOCOL);
  EXPECT_EQ(part(Bytes(61), 40).code(), OH_ERR_PROTOCOL);
}

// The sender of an eager message has completed it: a nack reports the failure.
TEST_F(ReceiverTest, ATooLongEagerMessageEndsItsReceiveAndIsReported) {
  Bytes small(10);
  Request& receive = post(1, small);
  EXPECT_TRUE(is_ok(arrive(1, message_)));
  EXPECT_EQ(receive.status.code(), OH_ERR_TRUNCATED);
  EXPECT_EQ(channel_.types(), std::vector{FrameType::kNack});
  EXPECT_EQ(channel_.given_back, eager_charge(100));
}

TEST_F(ReceiverTest, AnAnnouncedMessageIsClearedToSendOnce) {
  Request& receive = post(1, buffer_);
  EXPECT_TRUE(is_ok(announce(1, 100)));
  EXPECT_EQ(channel_.types(), std::vector{FrameType::kCts});
  EXPECT_TRUE(is_ok(part(message_, 0)));
  EXPECT_TRUE(receive.ended());
  EXPECT_EQ(buffer_, message_);
}

TEST_F(ReceiverTest, ATooLongAnnouncedMessageIsRejected) {
  Bytes small(10);
  Request& receive = post(1, small);
  EXPECT_TRUE(is_ok(announce(1, 100)));
  EXPECT_EQ(receive.status.code(), OH_ERR_TRUNCATED);
  EXPECT_EQ(channel_.types(), std::vector{FrameType::kReject});
  EXPECT_EQ(channel_.frames.back().length, 10u);
}

TEST_F(ReceiverTest, AWithdrawnMessageIsForgotten) {
  EXPECT_TRUE(is_ok(announce(1, 100)));
  EXPECT_EQ(receiver_.unexpected(), 1u);
  EXPECT_TRUE(is_ok(withdraw()));
  EXPECT_EQ(receiver_.unexpected(), 0u);
  EXPECT_FALSE(post(1, buffer_).ended());
}

// The receive keeps its place before receives that were posted later.
TEST_F(ReceiverTest, TheReceiveOfAWithdrawnMessageGetsTheNextOne) {
  Bytes other(100);
  Request& first = post(1, buffer_);
  Request& second = post(1, other);
  EXPECT_TRUE(is_ok(announce(1, 100)));
  EXPECT_TRUE(is_ok(withdraw()));
  EXPECT_TRUE(is_ok(arrive(1, message_)));
  EXPECT_TRUE(first.ended());
  EXPECT_FALSE(second.ended());
}

TEST_F(ReceiverTest, AnAnySourceReceiveOfAWithdrawnMessageGoesBackToItsList) {
  Request& receive = request(OpKind::kRecv, 1, buffer_);
  receive.any_source = true;
  ASSERT_TRUE(any_source_.post(&receive));
  EXPECT_TRUE(is_ok(announce(1, 100)));
  EXPECT_TRUE(any_source_.empty());
  EXPECT_TRUE(is_ok(withdraw()));
  EXPECT_FALSE(any_source_.empty());
  EXPECT_TRUE(any_source_.take_look_again());
  EXPECT_TRUE(any_source_.take(&receive));
}

// A stored message goes first, though the any-source receive was posted before the second receive.
TEST_F(ReceiverTest, AnySourceDoesNotOvertakeAnUnexpectedMessage) {
  EXPECT_TRUE(is_ok(arrive(1, message_)));
  Request& receive = request(OpKind::kRecv, 1, buffer_);
  receive.any_source = true;
  ASSERT_TRUE(any_source_.post(&receive));
  EXPECT_TRUE(is_ok(arrive(1, Bytes(100, 0xff))));
  ASSERT_TRUE(receive.ended());
  EXPECT_EQ(buffer_, message_);
  EXPECT_EQ(receiver_.unexpected(), 1u);
}

TEST_F(ReceiverTest, APartlyReceivedMessageIsTakenFromItsReceiveByForceOnly) {
  Request& receive = post(1, buffer_);
  EXPECT_TRUE(is_ok(announce(1, 100)));
  const Status late = error(OH_ERR_TIMEOUT, "late");
  LinkGuard guard(link_);
  EXPECT_FALSE(receiver_.cancel(&receive, late, /*force=*/false));
  EXPECT_TRUE(receiver_.cancel(&receive, late, /*force=*/true));
  EXPECT_EQ(receive.status.code(), OH_ERR_TIMEOUT);
  EXPECT_EQ(channel_.frames.back().type, FrameType::kReject);
}

// Complete messages can still be received after the link's end, but none behind a lost one.
TEST_F(ReceiverTest, TheEndOfTheLinkKeepsWholeMessages) {
  Request& waiting = post(9, buffer_);
  EXPECT_TRUE(is_ok(arrive(1, message_)));
  EXPECT_TRUE(is_ok(announce(1, 100)));
  EXPECT_TRUE(is_ok(arrive(1, message_)));
  {
    LinkGuard guard(link_);
    receiver_.fail_all(error(OH_ERR_PEER_LOST, "gone"));
  }
  EXPECT_EQ(waiting.status.code(), OH_ERR_PEER_LOST);
  EXPECT_EQ(receiver_.unexpected(), 1u);
  Request& receive = request(OpKind::kRecv, 1, buffer_);
  LinkGuard guard(link_);
  EXPECT_TRUE(receiver_.get_unexpected(&receive));
  EXPECT_EQ(buffer_, message_);
}

}  // namespace
}  // namespace receiver_test
