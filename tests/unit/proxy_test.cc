// SPDX-License-Identifier: Apache-2.0
#include "unit/proxy_scene.h"

namespace proxy_test {
namespace {

TEST_F(ProxyTest, ASmallSendIsAMessageOfItsPayload) {
  const uint64_t number = hand_in(kSend, message(8));
  EXPECT_TRUE(proxy_->serve());
  ASSERT_EQ(port_->posted_.size(), 1u);
  Request& request = *port_->posted_[0];
  EXPECT_EQ(request.kind, OpKind::kSend);
  EXPECT_EQ(request.data, memory_->payload(kSend, number));
  EXPECT_EQ(request.size, 8u);
  EXPECT_FALSE(answer(kSend, number));
  port_->end(request, {}, 8);
  EXPECT_TRUE(proxy_->serve());
  ASSERT_TRUE(answer(kSend, number));
  EXPECT_EQ(answer(kSend, number)->fault, OH_LANE_OK);
  EXPECT_EQ(answer(kSend, number)->bytes, 8u);
}

// No ticket overtakes another one of its half: messages match in the order of their posts.
TEST_F(ProxyTest, TicketsArePostedInOrderWhenThereIsRoom) {
  port_->room_ = false;
  hand_in(kRecv, message(8));
  hand_in(kRecv, message(16));
  proxy_->serve();
  EXPECT_TRUE(port_->posted_.empty());
  port_->room_ = true;
  proxy_->serve();
  ASSERT_EQ(port_->posted_.size(), 2u);
  EXPECT_EQ(port_->posted_[0]->size, 8u);
  EXPECT_EQ(port_->posted_[1]->size, 16u);
}

TEST_F(ProxyTest, ABufferThatIsStillInUseHoldsBackTheAnswer) {
  const uint64_t number = hand_in(kRecv, message(8));
  proxy_->serve();
  port_->released_ = false;
  port_->end(*port_->posted_[0], {}, 8);
  proxy_->serve();
  EXPECT_FALSE(answer(kRecv, number));
  port_->released_ = true;
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, number), OH_LANE_OK);
}

TEST_F(ProxyTest, AReceiveThatFailsFailsItsHalfUntilAReset) {
  const uint64_t first = hand_in(kRecv, message(8));
  proxy_->serve();
  port_->end(*port_->posted_[0], error(OH_ERR_SYSTEM, "broken"));
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, first), OH_LANE_FAILED);
  EXPECT_TRUE(fails_with(proxy_->failure(0, LaneSide::kRecv), OH_ERR_SYSTEM, "broken"));
  EXPECT_TRUE(is_ok(proxy_->failure(0, LaneSide::kSend)));
  const uint64_t second = hand_in(kRecv, message(8));
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, second), OH_LANE_FAILED);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_SYSTEM, "with the peer"));
  EXPECT_TRUE(is_ok(proxy_->take_error()));
}

TEST_F(ProxyTest, ATruncatedMessageIsReportedAndTheHalfGoesOn) {
  const uint64_t number = hand_in(kRecv, message(8));
  proxy_->serve();
  port_->posted_[0]->expected = 100;
  port_->end(*port_->posted_[0], error(OH_ERR_TRUNCATED, "too long"), 8);
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, number), OH_LANE_TRUNCATED);
  EXPECT_EQ(answer(kRecv, number)->bytes, 100u);
  EXPECT_TRUE(is_ok(proxy_->failure(0, LaneSide::kRecv)));
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_TRUNCATED, "receive side of lane 0"));
}

TEST_F(ProxyTest, AReceiveWaitsAgainWhenTheSenderTakesItsMessageBack) {
  const uint64_t number = hand_in(kRecv, message(8));
  proxy_->serve();
  port_->end(*port_->posted_[0], error(OH_ERR_RETIRED, "taken back"));
  proxy_->serve();
  proxy_->serve();
  EXPECT_FALSE(answer(kRecv, number));
  EXPECT_EQ(port_->posted_.size(), 1u);
}

TEST_F(ProxyTest, AReceivePastItsDeadlineEnds) {
  kernels::Ticket ticket = message(8);
  ticket.timeout_ns = 0;
  const uint64_t number = hand_in(kRecv, ticket);
  proxy_->serve();
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, number), OH_LANE_TIMEOUT);
  EXPECT_TRUE(fails_with(proxy_->failure(0, LaneSide::kRecv), OH_ERR_TIMEOUT));
}

TEST_F(ProxyTest, PutsGoToRegionsThatAreKnown) {
  move_by_regions(0, OpKind::kPut, "a put of 8 bytes");
}

TEST_F(ProxyTest, GetsComeFromRegionsThatAreKnown) {
  move_by_regions(kernels::kOfGet, OpKind::kGet, "a get of 8 bytes");
}

TEST_F(ProxyTest, AnAtomicOperationTellsWhatWasThere) {
  const uint64_t adds = hand_in_atomic(kernels::kOfAdd);
  const uint64_t swaps = hand_in_atomic(kernels::kOfCompareSwap);
  proxy_->serve();
  ASSERT_EQ(port_->atomics_.size(), 2u);
  EXPECT_EQ(port_->atomics_[0].op.kind, AtomicOp::Kind::kAdd);
  EXPECT_EQ(port_->atomics_[1].op.kind, AtomicOp::Kind::kCompareSwap);
  for (FakePort::Atomic& atomic : port_->atomics_) {
    EXPECT_EQ(atomic.region, 5u);
    EXPECT_EQ(atomic.offset, 64u);
    EXPECT_EQ(atomic.op.value, 3u);
    EXPECT_EQ(atomic.op.expected, 9u);
  }
  // Answers may arrive in any order.
  port_->atomics_[1].answer = uint64_t{77};
  proxy_->serve();
  EXPECT_FALSE(answer(kMoveQueue, adds));
  EXPECT_EQ(fault(kMoveQueue, swaps), OH_LANE_OK);
  EXPECT_EQ(answer(kMoveQueue, swaps)->bytes, 77u);
  port_->atomics_[0].answer = error(OH_ERR_RETIRED, "it has gone");
  proxy_->serve();
  EXPECT_EQ(fault(kMoveQueue, adds), OH_LANE_FAILED);
  EXPECT_EQ(answer(kMoveQueue, adds)->bytes, 0u);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_RETIRED, "an atomic operation"));
}

TEST_F(ProxyTest, AnAtomicOperationEndsAtItsDeadlineOrWithItsPeer) {
  const uint64_t late = hand_in_atomic(kernels::kOfAdd, /*timeout_ns=*/0);
  proxy_->serve();
  proxy_->serve();
  EXPECT_TRUE(port_->atomics_[0].abandoned);
  EXPECT_EQ(fault(kMoveQueue, late), OH_LANE_TIMEOUT);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_TIMEOUT, "an atomic operation"));
  const uint64_t answered = hand_in_atomic(kernels::kOfAdd);
  const uint64_t lost = hand_in_atomic(kernels::kOfAdd);
  proxy_->serve();
  port_->atomics_[1].answer = uint64_t{4};
  port_->usable_ = Status(OH_ERR_PEER_LOST, "it has died");
  proxy_->serve();
  EXPECT_EQ(fault(kMoveQueue, answered), OH_LANE_OK) << "it had been answered";
  EXPECT_EQ(fault(kMoveQueue, lost), OH_LANE_ABORTED);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_PEER_LOST, "an atomic operation"));
}

// On a region that is gone, and one in flight when the link closes.
TEST_F(ProxyTest, AnAtomicOperationThatCannotBeOrIsLeftBehind) {
  kernels::Ticket ticket = message(0);
  ticket.place = {6 | kernels::kOfAdd, 2, 64};
  const uint64_t unknown = hand_in(kMoveQueue, ticket);
  proxy_->serve();
  EXPECT_EQ(fault(kMoveQueue, unknown), OH_LANE_FAILED);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_RETIRED, "an atomic operation"));
  hand_in_atomic(kernels::kOfAdd);
  proxy_->serve();
  ASSERT_EQ(port_->atomics_.size(), 1u);
  proxy_->close();
  EXPECT_TRUE(port_->atomics_[0].abandoned);
}

TEST_F(ProxyTest, ASignalIsAnsweredWhenItIsOnItsWay) {
  const uint64_t number = hand_in(kSignalQueue, message(/*count=*/3, /*slot=*/7));
  proxy_->serve();
  ASSERT_EQ(port_->posted_.size(), 1u);
  EXPECT_FALSE(answer(kSignalQueue, number));
  port_->end(*port_->posted_[0], {});
  proxy_->serve();
  EXPECT_EQ(fault(kSignalQueue, number), OH_LANE_OK);
}

TEST_F(ProxyTest, AWaitEndsWhenEnoughSignalsHaveCome) {
  const uint64_t number = hand_in(kWaitQueues + 7, message(/*count=*/2));
  proxy_->serve();
  port_->arrives(ProxyMessage::Kind::kSignal, 7, 1);
  proxy_->serve();
  EXPECT_FALSE(answer(kWaitQueues + 7, number));
  port_->arrives(ProxyMessage::Kind::kSignal, 7, 1);
  proxy_->serve();
  EXPECT_EQ(fault(kWaitQueues + 7, number), OH_LANE_OK);
}

// A signal that arrived before the loss counts.
TEST_F(ProxyTest, ALostLinkEndsWaits) {
  const uint64_t number = hand_in(kWaitQueues, message(/*count=*/2));
  proxy_->serve();
  port_->arrives(ProxyMessage::Kind::kSignal, 0, 1);
  port_->usable_ = error(OH_ERR_PEER_LOST, "gone");
  proxy_->serve();
  EXPECT_EQ(fault(kWaitQueues, number), OH_LANE_ABORTED);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_CANCELLED, "2 signals on slot 0"));
}

TEST_F(ProxyTest, AMalformedMessageIsAProtocolError) {
  proxy_->serve();
  port_->arrives(ProxyMessage::Kind::kReset, OH_LANES, 1);
  proxy_->serve();
  EXPECT_EQ(port_->accused_.code(), OH_ERR_PROTOCOL);
}

// Otherwise a signal would be lost silently.
TEST_F(ProxyTest, AMessageThatIsTooLongIsAProtocolError) {
  proxy_->serve();
  ASSERT_FALSE(port_->incoming_.empty());
  port_->end(*port_->incoming_.front(), error(OH_ERR_TRUNCATED, "a message of 65 bytes"));
  proxy_->serve();
  EXPECT_TRUE(fails_with(port_->accused_, OH_ERR_PROTOCOL, "a message of 65 bytes"));
}

// After the end of the link the peer is not accused.
TEST_F(ProxyTest, AMessageThatEndsWithTheLinkIsNoError) {
  proxy_->serve();
  port_->usable_ = error(OH_ERR_PEER_LOST, "gone");
  port_->end(*port_->incoming_.front(), port_->usable_);
  proxy_->serve();
  EXPECT_TRUE(is_ok(port_->accused_));
}

TEST_F(ProxyTest, AResetEndsWhenBothSidesHaveEndedTheirOperations) {
  const uint64_t old = hand_in(kRecv, message(8));
  proxy_->serve();
  const uint64_t old_tag = port_->posted_[0]->tag;
  proxy_->reset(0, proxy_->resets(0));
  EXPECT_TRUE(proxy_->is_resetting(0));
  port_->stuck_ = true;
  proxy_->serve();
  EXPECT_EQ(port_->posted_.size(), 1u);  // the peer has no message yet
  port_->stuck_ = false;
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, old), OH_LANE_ABORTED);
  ASSERT_EQ(port_->posted_.size(), 1u);  // the message to the peer
  EXPECT_EQ(port_->posted_[0]->kind, OpKind::kSend);
  EXPECT_TRUE(proxy_->is_resetting(0));
  port_->arrives(ProxyMessage::Kind::kReset, 0, 1);
  proxy_->serve();
  EXPECT_FALSE(proxy_->is_resetting(0));
  EXPECT_EQ(proxy_->resets(0), 1u);
  EXPECT_EQ(port_->discarded_, std::vector{old_tag});
  EXPECT_TRUE(is_ok(proxy_->failure(0, LaneSide::kRecv)));
  hand_in(kRecv, message(8));
  proxy_->serve();
  EXPECT_NE(port_->posted_.back()->tag, old_tag);
}

TEST_F(ProxyTest, APeerThatBeginsAResetBeginsOurs) {
  proxy_->serve();
  port_->arrives(ProxyMessage::Kind::kReset, 3, 1);
  proxy_->serve();
  EXPECT_EQ(proxy_->resets(3), 1u);
  EXPECT_EQ(proxy_->resets(0), 0u);
}

TEST_F(ProxyTest, AfterCloseNoTicketIsTaken) {
  proxy_->close();
  hand_in(kSend, message(8));
  EXPECT_FALSE(proxy_->serve());
  EXPECT_TRUE(port_->posted_.empty());
}

}  // namespace
}  // namespace proxy_test
