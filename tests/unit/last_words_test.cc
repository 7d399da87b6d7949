// SPDX-License-Identifier: Apache-2.0
//
// Messages that a peer sent before it was lost: complete messages can still be received, in order
// and without a gap.
#include <cstring>

#include "fuzz/victim.h"
#include "unit/support.h"

namespace last_words_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

constexpr uint64_t kName = uint64_t{1} << 32;

class LastWords : public ::testing::Test {
 protected:
  LastWords() : ring_(*victim_.segment()) {}

  // A message of `length` bytes, of which `payload` bytes arrive with this frame.
  void say(FrameType type, uint64_t tag, uint64_t length, uint8_t byte = 0, size_t payload = 0) {
    const Bytes bytes(payload, byte);
    Frame frame;
    frame.type = type;
    frame.tag = tag;
    frame.length = length;
    frame.op = kName | next_++;
    frame.payload = bytes.data();
    frame.payload_size = payload;
    ASSERT_TRUE(ring_.push(frame));
    victim_.progress();
  }
  void send(uint64_t tag, uint8_t byte) { say(FrameType::kEager, tag, 100, byte, 100); }
  void die() {
    victim_.segment()->advance(SideState::kFailed);
    victim_.progress();
    ASSERT_TRUE(fails_with(victim_.peer().usable(), OH_ERR_PEER_LOST));
  }
  // Returns the result of a receive that is posted now: the byte of a message, or -1 and the
  // status.
  int receive(uint64_t tag, bool any_source = false) {
    Bytes into(1000, 0xee);
    Request request;
    request.kind = OpKind::kRecv;
    request.endpoint = &victim_.endpoint();
    request.data = into.data();
    request.size = into.size();
    request.tag = tag;
    status_ = any_source ? victim_.endpoint().requests().post_any_source(&request)
                         : victim_.peer().operations().messages().post_recv(&request);
    if (status_.ok() && !request.ended()) {
      status_ = error(OH_IN_PROGRESS, "nothing has come");
      EXPECT_TRUE(is_ok(victim_.endpoint().requests().cancel(&request)));
    } else if (status_.ok()) {
      status_ = request.status;
    }
    return status_.ok() ? into[0] : -1;
  }

  fuzz::Victim victim_{/*segment=*/true, /*reach=*/0};
  RingChannel ring_;
  uint64_t next_ = 0;
  Status status_;
};

TEST_F(LastWords, WholeMessagesAreReceivedInOrder) {
  send(1, 1);
  send(1, 2);
  die();
  EXPECT_EQ(receive(1), 1);
  EXPECT_EQ(receive(1, /*any_source=*/true), 2);
  EXPECT_EQ(receive(1), -1);
  EXPECT_TRUE(fails_with(status_, OH_ERR_PEER_LOST));
}

TEST_F(LastWords, NothingIsReceivedInPlaceOfAMessageThatWasOnlyAnnounced) {
  send(1, 1);
  say(FrameType::kRts, 1, 100);
  send(1, 2);
  send(2, 3);
  die();
  EXPECT_EQ(receive(1), 1);
  EXPECT_EQ(receive(1), -1);
  EXPECT_TRUE(fails_with(status_, OH_ERR_PEER_LOST));
  EXPECT_EQ(receive(1, /*any_source=*/true), -1);
  EXPECT_TRUE(fails_with(status_, OH_IN_PROGRESS));
  // Tags are independent of each other.
  EXPECT_EQ(receive(2), 3);
}

TEST_F(LastWords, NothingIsReceivedInPlaceOfAMessageThatCameInPart) {
  say(FrameType::kEager, 1, 100, 1, 50);
  send(1, 2);
  send(2, 3);
  die();
  EXPECT_EQ(receive(1), -1);
  EXPECT_TRUE(fails_with(status_, OH_ERR_PEER_LOST));
  EXPECT_EQ(receive(OH_ANY_TAG), 3);
}

// The receive that had it has failed, and the next receive gets the next message.
TEST_F(LastWords, AReceiveThatFailedHadItsMessage) {
  Bytes into(1000);
  Request request;
  request.kind = OpKind::kRecv;
  request.endpoint = &victim_.endpoint();
  request.data = into.data();
  request.size = into.size();
  request.tag = 1;
  ASSERT_TRUE(is_ok(victim_.peer().operations().messages().post_recv(&request)));
  say(FrameType::kRts, 1, 100);
  send(1, 2);
  die();
  EXPECT_TRUE(fails_with(request.status, OH_ERR_PEER_LOST));
  EXPECT_EQ(receive(1), 2);
}

}  // namespace
}  // namespace last_words_test
