// SPDX-License-Identifier: Apache-2.0
//
// Short messages with requests: which of them one poll of the ring ends, and with which result.
#include <vector>

#include "fuzz/victim.h"
#include "unit/support.h"

namespace small_messages_test {
namespace {

using namespace oh;
using unit::is_ok;

constexpr uint64_t kTag = 7;

class SmallMessages : public ::testing::Test {
 protected:
  SmallMessages() : victim_(/*segment=*/true, /*reach=*/0), ring_(*victim_.segment()) {}
  ~SmallMessages() override {
    for (Request* request : requests_) endpoint().requests().release(request);
  }

  Endpoint& endpoint() { return victim_.endpoint(); }
  Peer& peer() { return victim_.peer(); }
  // A receive into the next of the words.
  Request* post(uint64_t tag, size_t capacity = sizeof(uint64_t)) {
    Request* request = endpoint().requests().acquire(endpoint());
    request->kind = OpKind::kRecv;
    request->data = reinterpret_cast<uint8_t*>(&words_[requests_.size()]);
    request->size = capacity;
    request->tag = tag;
    requests_.push_back(request);
    EXPECT_TRUE(is_ok(peer().operations().messages().post_recv(request)));
    return request;
  }
  void send(uint64_t tag, uint64_t word) {
    ASSERT_TRUE(ring_.push_short(tag, reinterpret_cast<const uint8_t*>(&word), sizeof(word)));
  }
  void expect_got(size_t index, uint64_t tag, uint64_t word) {
    const Request& request = *requests_[index];
    ASSERT_TRUE(request.ended());
    EXPECT_TRUE(is_ok(request.status));
    EXPECT_EQ(words_[index], word);
    EXPECT_EQ(request.nbytes, sizeof(word));
    EXPECT_EQ(request.message_tag, tag);
    EXPECT_EQ(request.path, OH_PATH_INLINE);
    EXPECT_EQ(request.peer_id, peer().link().id);
  }

  fuzz::Victim victim_;
  RingChannel ring_;
  std::vector<Request*> requests_;
  uint64_t words_[64] = {};
};

TEST_F(SmallMessages, OneLookEndsAllReceivesWhoseMessagesHaveCome) {
  for (int i = 0; i < 4; ++i) post(kTag);
  for (uint64_t i = 0; i < 3; ++i) send(kTag, 100 + i);
  send(kTag + 1, 1);
  ASSERT_TRUE(peer().operations().progress(requests_[0]));
  for (size_t i = 0; i < 3; ++i) expect_got(i, kTag, 100 + i);
  EXPECT_FALSE(requests_[3]->ended());
  // That message has no receive: a poll for another receive leaves it in the ring.
  EXPECT_FALSE(peer().operations().messages().probe(kTag + 1));
  peer().operations().progress(nullptr);
  EXPECT_TRUE(peer().operations().messages().probe(kTag + 1));
}

TEST_F(SmallMessages, AReceiveTakesTheNextMessageAsItIsPosted) {
  post(kTag);
  send(kTag, 1);
  peer().operations().progress(requests_[0]);
  send(kTag, 2);
  send(kTag, 3);
  for (size_t i = 1; i < 3; ++i) post(kTag);
  for (size_t i = 0; i < 3; ++i) expect_got(i, kTag, i + 1);
}

TEST_F(SmallMessages, AWildcardThatWasPostedFirstGetsTheMessage) {
  post(kTag);
  post(OH_ANY_TAG);
  post(kTag);
  for (uint64_t i = 0; i < 3; ++i) send(kTag, i);
  peer().operations().progress(requests_[2]);
  for (size_t i = 0; i < 3; ++i) expect_got(i, kTag, i);
}

TEST_F(SmallMessages, AMessageThatIsTooLongEndsItsReceiveOnly) {
  post(kTag);
  post(kTag, 4);
  post(kTag);
  for (uint64_t i = 0; i < 3; ++i) send(kTag, i);
  peer().operations().progress(requests_[2]);
  expect_got(0, kTag, 0);
  EXPECT_EQ(requests_[1]->status.code(), OH_ERR_TRUNCATED);
  expect_got(2, kTag, 2);
}

TEST_F(SmallMessages, AReceiveWithoutItsHandleGoesBackToThePool) {
  Request* request = post(kTag);
  post(kTag);
  requests_.erase(requests_.begin());
  endpoint().requests().release(request);
  send(kTag, 1);
  send(kTag, 2);
  peer().operations().progress(requests_[0]);
  EXPECT_EQ(words_[0], 1u);
  EXPECT_EQ(words_[1], 2u);
  Request* again = endpoint().requests().acquire(endpoint());
  EXPECT_EQ(again, request);
  EXPECT_FALSE(again->ended());
  again->done.store(1);
  endpoint().requests().release(again);
}

TEST_F(SmallMessages, ASendHasEndedWhenItReturns) {
  const uint64_t word = 5;
  const auto* data = reinterpret_cast<const uint8_t*>(&word);
  // The first message of a tag takes another path.
  for (int i = 0; i < 3; ++i) {
    Request* request = endpoint().requests().acquire(endpoint());
    requests_.push_back(request);
    request->kind = OpKind::kSend;
    request->data = const_cast<uint8_t*>(data);
    request->size = sizeof(word);
    request->tag = kTag;
    if (i == 0) {
      ASSERT_TRUE(is_ok(peer().operations().messages().post_send(request)));
    } else {
      ASSERT_TRUE(peer().operations().messages().send_now(request, data, sizeof(word), kTag));
    }
    EXPECT_TRUE(request->ended());
    EXPECT_EQ(request->nbytes, sizeof(word));
    EXPECT_EQ(request->message_tag, kTag);
    EXPECT_EQ(request->path, OH_PATH_INLINE);
    Frame frame;
    ASSERT_TRUE(ring_.ready() && is_ok(ring_.peek(&frame)));
    EXPECT_EQ(frame.tag, kTag);
    EXPECT_EQ(frame.length, sizeof(word));
    ring_.pop();
  }
  EXPECT_EQ(peer().stats().sent(OH_PATH_INLINE).operations, 3u);
}

}  // namespace
}  // namespace small_messages_test
