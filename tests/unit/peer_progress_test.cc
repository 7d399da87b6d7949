// SPDX-License-Identifier: Apache-2.0
//
// The work of one call of progress, and the work left for the next one.
#include <atomic>
#include <thread>

#include "fuzz/victim.h"
#include "unit/support.h"

namespace peer_progress_test {
namespace {

using namespace oh;
using unit::is_ok;

constexpr uint64_t kName = uint64_t{1} << 32;

// Neither side can access the other's memory.
class PeerProgress : public ::testing::Test {
 protected:
  PeerProgress() : victim_(/*segment=*/true, /*reach=*/0), ring_(*victim_.segment()) {}

  void ask_for(uint64_t length) {
    Frame get;
    get.type = FrameType::kGet;
    get.op = kName;
    get.region = victim_.region().index;
    get.tag = victim_.region().version;
    get.length = length;
    ASSERT_TRUE(ring_.push(get));
  }
  // Returns the victim's next frame.
  Frame hear() {
    Frame frame;
    EXPECT_TRUE(ring_.ready() && is_ok(ring_.peek(&frame)));
    ring_.pop();
    return frame;
  }

  fuzz::Victim victim_;
  RingChannel ring_;
};

// The ring is full of local puts, whose remaining frames would take all room that becomes free.
TEST_F(PeerProgress, PutsLeaveRoomForAnswers) {
  constexpr size_t kSize = 32 << 20;
  victim_.post_one_sided(/*put=*/true, kSize, /*notify=*/false);
  ask_for(100);
  size_t put = 0;
  for (bool answered = false; !answered && put < kSize;) {
    victim_.progress();
    const Frame frame = hear();
    answered = (frame.flags & kReply) != 0;
    if (!answered) put += frame.payload_size;
  }
  EXPECT_LT(put, kSize / 2);
}

// A notification is found although another thread holds the lock of its link: the signal behind it
// is seen without the lock.
TEST_F(PeerProgress, NotificationsAreFoundBehindALockThatIsHeld) {
  Frame notify;
  notify.type = FrameType::kNotify;
  ASSERT_TRUE(ring_.push(notify));
  Link& link = victim_.peer().link();
  Result<bool> taken = false;
  std::atomic<bool> over{false};
  std::thread taker;
  {
    LinkGuard guard(link);
    taker = std::thread([&] {
      Notification notification;
      size_t size = 0;
      taken = victim_.endpoint().notifications().take(64, &notification, &size);
      over = true;
    });
    EXPECT_TRUE(unit::eventually([&] { return link.lock.contended() || over; }));
  }
  taker.join();
  ASSERT_TRUE(is_ok(taken));
  EXPECT_TRUE(*taken);
}

// However many announced sends are withdrawn, a single epoch restarts the numbers: with the next
// message, and before it.
TEST_F(PeerProgress, SendsThatAreTakenBackBeginOneEpoch) {
  constexpr uint64_t kSends = 100;
  for (uint64_t tag = 0; tag < kSends; ++tag) victim_.post_send(tag, 70000);
  for (uint64_t i = 0; i < kSends; ++i) EXPECT_EQ(hear().type, FrameType::kRts);
  for (uint64_t i = 0; i < kSends; ++i) {
    victim_.cancel_oldest(/*give_up=*/false);
    EXPECT_EQ(hear().type, FrameType::kAbort);
  }
  EXPECT_FALSE(ring_.ready());
  EXPECT_EQ(victim_.pending(), 1u);  // the last one, forgotten with the next message
  for (uint32_t epoch : {1, 2}) {
    victim_.post_send(1, 70000);
    const Frame said = hear();
    EXPECT_EQ(said.type, FrameType::kEpoch);
    EXPECT_EQ(said.aux, epoch);
    EXPECT_EQ(hear().type, FrameType::kRts);
    victim_.post_send(2, 70000);
    EXPECT_EQ(hear().type, FrameType::kRts);
    for (int i = 0; i < 2; ++i) {
      victim_.cancel_oldest(/*give_up=*/false);
      EXPECT_EQ(hear().type, FrameType::kAbort);
    }
  }
  EXPECT_FALSE(ring_.ready());
}

// The reply is on its way after the next call of progress, even though the caller of the first call
// got what it waited for.
TEST_F(PeerProgress, WhatCameBeforeTheAwaitedFrameIsNotForgotten) {
  uint64_t word = 0;
  Request request;
  request.kind = OpKind::kRecv;
  request.endpoint = &victim_.endpoint();
  request.data = reinterpret_cast<uint8_t*>(&word);
  request.size = sizeof(word);
  request.tag = 1;
  ASSERT_TRUE(is_ok(victim_.peer().operations().messages().post_recv(&request)));
  ask_for(100);
  const Bytes payload(sizeof(word), 5);
  Frame eager;
  eager.type = FrameType::kEager;
  eager.tag = 1;
  eager.length = eager.payload_size = payload.size();
  eager.payload = payload.data();
  ASSERT_TRUE(ring_.push(eager));
  EXPECT_TRUE(victim_.peer().operations().progress(&request));
  EXPECT_TRUE(request.ended());
  EXPECT_TRUE(victim_.peer().operations().poll(nullptr));
  EXPECT_EQ(hear().type, FrameType::kData);
}

}  // namespace
}  // namespace peer_progress_test
