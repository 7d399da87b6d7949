// SPDX-License-Identifier: Apache-2.0
//
// Liveness, with the test as the peer at the control socket.
#include "link/liveness.h"

#include "link/tags.h"
#include "unit/fake_link.h"
#include "unit/support.h"

namespace unit::liveness_test {
namespace {

using namespace oh;

class LivenessTest : public ::testing::Test {
 protected:
  LivenessTest() {
    auto [ours, theirs] = socket_pair();
    there_ = MessageSocket(std::move(theirs), 1 << 20);
    connection_ =
        std::make_shared<Connection>(*Node::get(config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}})),
                                     MessageSocket(std::move(ours), 1 << 20), /*pid=*/0);
    liveness_.emplace(fakes_.link, connection_.get());
  }
  ~LivenessTest() override { connection_->close({}, Deadline::after(0)); }

  // Returns the next message that this side has sent.
  Bytes hear(Control type) {
    Result<MessageSocket::Message> message =
        there_.receive_until(Deadline::after(20 * kSecond), "a message");
    EXPECT_TRUE(is_ok(message));
    if (!message.ok()) return {};
    EXPECT_EQ(message->type, static_cast<uint8_t>(type));
    return Bytes(message->payload.begin(), message->payload.end());
  }
  static Bytes pong(uint64_t serial, uint32_t waiting, uint64_t tag) {
    Bytes bytes;
    Writer writer(bytes);
    writer.u64(serial);
    writer.u32(waiting);
    writer.u64(tag);
    return bytes;
  }
  uint64_t probed() {
    const Bytes ping = hear(Control::kPing);
    return Reader(ping).u64();
  }

  FakeLink fakes_;
  MessageSocket there_;
  std::shared_ptr<Connection> connection_;
  std::optional<Liveness> liveness_;
};

TEST_F(LivenessTest, AProbeIsOldUntilItIsAnswered) {
  EXPECT_EQ(liveness_->unresponsive_for(), 0) << "it has just been sent";
  const uint64_t serial = probed();
  EXPECT_TRUE(eventually([&] { return liveness_->unresponsive_for() > 0; }));
  EXPECT_TRUE(is_ok(liveness_->on_pong(pong(serial, 0, 0))));
  EXPECT_EQ(liveness_->unresponsive_for(), 0);
  EXPECT_EQ(probed(), serial + 1) << "one is under way at a time";
}

TEST_F(LivenessTest, AnAnswerSaysWhatItWaitsFor) {
  EXPECT_EQ(liveness_->text().find("there: does not wait"), 0u);
  EXPECT_TRUE(is_ok(liveness_->on_pong(pong(1, static_cast<uint32_t>(WaitKind::kRecv), 5))));
  EXPECT_EQ(liveness_->theirs().kind, WaitKind::kRecv);
  EXPECT_EQ(liveness_->text().find("there: waits in a receive (tag 5)"), 0u);
  EXPECT_TRUE(
      is_ok(liveness_->on_pong(pong(1, static_cast<uint32_t>(WaitKind::kSend), OH_ANY_TAG))));
  EXPECT_EQ(liveness_->text().find("there: waits in a send (any tag)"), 0u);
  EXPECT_TRUE(
      is_ok(liveness_->on_pong(pong(1, static_cast<uint32_t>(WaitKind::kRecv), kBarrierTags + 7))));
  EXPECT_EQ(liveness_->text().find("there: waits in a receive (the tag of a barrier)"), 0u);
  EXPECT_TRUE(is_ok(liveness_->on_pong(pong(1, 1000, 5))));
  EXPECT_EQ(liveness_->theirs().kind, WaitKind::kNothing) << "of a later version";
}

TEST_F(LivenessTest, OurAnswerSaysWhatWeWaitFor) {
  liveness_->set_waiting({WaitKind::kSignal, 3});
  Bytes ping;
  Writer(ping).u64(17);
  EXPECT_TRUE(is_ok(liveness_->on_ping(ping)));
  EXPECT_EQ(hear(Control::kPong), pong(17, static_cast<uint32_t>(WaitKind::kSignal), 3));
}

TEST_F(LivenessTest, ThePeerThatAnswersNothingHasNoSignOfLife) {
  EXPECT_TRUE(eventually(
      [&] { return liveness_->text().find("no sign of life for 0.") != std::string::npos; }));
}

// It is visible in the segment at once, without a probe.
TEST_F(LivenessTest, ASegmentShowsWhatBothSidesWaitFor) {
  std::unique_ptr<Segment> segment = std::move(*Segment::create(/*shared=*/false));
  std::unique_ptr<Segment> alias = Segment::alias(*segment);
  segment->take_side(0, /*loopback=*/false);
  alias->take_side(1, /*loopback=*/false);
  fakes_.link.segment = std::move(segment);
  FakeLink there;
  there.link.segment = std::move(alias);
  Liveness theirs(there.link, /*connection=*/nullptr);
  theirs.set_waiting({WaitKind::kRecv, 9});
  EXPECT_EQ(liveness_->theirs().kind, WaitKind::kRecv);
  EXPECT_EQ(liveness_->theirs().tag, 9u);
  liveness_->set_waiting({WaitKind::kSend, 8});
  EXPECT_EQ(theirs.theirs().kind, WaitKind::kSend);
  EXPECT_EQ(theirs.unresponsive_for(), 0) << "within the process nobody is asked";
}

TEST_F(LivenessTest, MessagesOfAnotherSizeBreakTheProtocol) {
  EXPECT_TRUE(fails_with(liveness_->on_pong(Bytes(8)), OH_ERR_PROTOCOL));
  for (const size_t size : {7, 9}) {
    EXPECT_TRUE(fails_with(liveness_->on_ping(Bytes(size)), OH_ERR_PROTOCOL));
  }
}

}  // namespace
}  // namespace unit::liveness_test
