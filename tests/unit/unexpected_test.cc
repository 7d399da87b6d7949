// SPDX-License-Identifier: Apache-2.0
//
// UnexpectedQueue: order per tag and over all user tags, and look-ups by name.
#include "message/unexpected.h"

#include <algorithm>
#include <cstring>

#include "link/tags.h"
#include "unit/support.h"

namespace unexpected_test {
namespace {

using namespace oh;

constexpr uint64_t kOfferTag = OH_TAG_MAX + 1;

class UnexpectedTest : public ::testing::Test {
 protected:
  Unexpected* eager(UnexpectedQueue::OfTag& of_tag, uint64_t tag, const Bytes& bytes,
                    uint64_t length) {
    Frame frame;
    frame.type = FrameType::kEager;
    frame.tag = tag;
    frame.length = length;
    frame.op = 7;
    frame.payload = bytes.data();
    frame.payload_size = bytes.size();
    return queue_.keep(of_tag, frame);
  }
  Unexpected* eager(UnexpectedQueue::OfTag& of_tag, uint64_t tag, const Bytes& bytes) {
    return eager(of_tag, tag, bytes, bytes.size());
  }

  UnexpectedQueue queue_;
  UnexpectedQueue::OfTag one_, two_;
};

TEST_F(UnexpectedTest, AnyTagTakesTheFirstOfAllUserTags) {
  Unexpected* first = eager(one_, 1, Bytes(8));
  Unexpected* second = eager(two_, 2, Bytes(8));
  EXPECT_EQ(queue_.front(), first);
  EXPECT_EQ(queue_.size(), 2u);
  queue_.drop(first);
  EXPECT_EQ(queue_.front(), second);
  EXPECT_TRUE(one_.empty());
  queue_.drop(second);
  EXPECT_FALSE(queue_.has_user_messages());
  EXPECT_EQ(queue_.size(), 0u);
}

TEST_F(UnexpectedTest, TheOrderOfATagIsKept) {
  Unexpected* first = eager(one_, 1, Bytes(8));
  queue_.keep(one_, Rts{.tag = 1, .length = 100, .op = 3});
  EXPECT_EQ(one_.front(), first);
  EXPECT_TRUE(one_.back()->announced);
}

TEST_F(UnexpectedTest, BytesAreKeptWhateverTheirSize) {
  unit::Random random(1);
  for (const size_t size : {0, 1, 64, 65, 4096}) {
    const Bytes bytes = random.bytes(size);
    Unexpected* message = eager(one_, 1, bytes);
    EXPECT_TRUE(message->is_whole());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), message->bytes()));
    queue_.drop(message);
  }
}

// Pooled messages keep none of their earlier content.
TEST_F(UnexpectedTest, AFirstPartIsNotTheWholeMessage) {
  queue_.drop(eager(one_, 1, Bytes(4096)));
  Unexpected* message = eager(one_, 1, Bytes(10), 20);
  EXPECT_FALSE(message->is_whole());
  EXPECT_EQ(message->received, 10u);
  message->received = 20;
  EXPECT_TRUE(message->is_whole());
}

TEST_F(UnexpectedTest, AnnouncedMessagesAreFoundByName) {
  queue_.keep(one_, Rts{.tag = 1, .length = 100, .op = uint64_t{2} << 32 | 5});
  Unexpected* message = queue_.find_announced(uint64_t{2} << 32 | 5);
  ASSERT_EQ(message, one_.front());
  EXPECT_FALSE(message->is_whole());
  // Another generation of the same index.
  EXPECT_EQ(queue_.find_announced(uint64_t{1} << 32 | 5), nullptr);
  EXPECT_EQ(queue_.find_announced(99), nullptr);
  queue_.drop(message);
  EXPECT_EQ(queue_.find_announced(uint64_t{2} << 32 | 5), nullptr);
}

// An eager message's name must not be found as that of an announced one.
TEST_F(UnexpectedTest, EagerMessagesHaveNoName) {
  eager(one_, 1, Bytes(8));
  EXPECT_EQ(queue_.find_announced(7), nullptr);
}

TEST_F(UnexpectedTest, OfTwoWithOneNameTheLaterIsFound) {
  queue_.keep(one_, Rts{.tag = 1, .op = 5});
  queue_.keep(one_, Rts{.tag = 1, .op = 5});
  EXPECT_EQ(queue_.find_announced(5), one_.back());
  queue_.drop(one_.front());
  EXPECT_EQ(queue_.find_announced(5), one_.front());
}

TEST_F(UnexpectedTest, WildcardsDoNotSeeTheLibrarysTags) {
  eager(one_, kOfferTag, Bytes(8));
  EXPECT_EQ(queue_.front(), nullptr);
  EXPECT_EQ(queue_.size(), 1u);
}

TEST_F(UnexpectedTest, OffersAreFoundByTheReceiveThatTheyName) {
  const uint64_t name = 42;
  Bytes bytes(64);
  std::memcpy(bytes.data(), &name, sizeof(name));
  Unexpected* offer = eager(one_, kOfferTag, bytes);
  queue_.name_offer(offer);
  EXPECT_EQ(queue_.find_offer(name), offer);
  // Neither a user's message nor one that is too short names a receive.
  queue_.name_offer(eager(two_, 1, bytes));
  queue_.name_offer(eager(two_, kOfferTag, Bytes(4)));
  EXPECT_EQ(queue_.find_offer(name), offer);
  EXPECT_EQ(queue_.find_offer(0), nullptr);
  queue_.drop(offer);
  EXPECT_EQ(queue_.find_offer(name), nullptr);
}

// A sender must not make us allocate for arbitrary names.
TEST_F(UnexpectedTest, NamesAreBounded) {
  queue_.keep(one_, Rts{.tag = 1, .op = kMaxOps});
  EXPECT_EQ(queue_.find_announced(kMaxOps), nullptr);
}

}  // namespace
}  // namespace unexpected_test
