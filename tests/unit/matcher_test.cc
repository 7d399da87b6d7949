// SPDX-License-Identifier: Apache-2.0
//
// Matcher: which posted receive a message matches, without a peer.
#include "message/matcher.h"

#include "link/tags.h"
#include "unit/message_test.h"
#include "unit/support.h"

namespace matcher_test {
namespace {

using namespace oh;

class MatcherTest : public unit::MessageTest {
 protected:
  Request& post(uint64_t tag) {
    Request& receive = request(OpKind::kRecv, tag, buffer_);
    receive.phase = Phase::kPosted;
    receive.order = matcher_.next_order();
    matcher_.insert(&receive);
    return receive;
  }
  // Posts to the list that all peers share, without offering it any message.
  Request& post_any_source(uint64_t tag) {
    Request& receive = request(OpKind::kRecv, tag, buffer_);
    receive.any_source = true;
    EXPECT_TRUE(any_source_.post(&receive));
    return receive;
  }
  void offered() { matcher_.set_offered(any_source_.era()); }
  Request* match(uint64_t tag) {
    Result<Request*> matched = matcher_.match(matcher_.tag_of(tag));
    EXPECT_TRUE(unit::is_ok(matched));
    return matched.ok() ? *matched : nullptr;
  }

  Bytes buffer_ = Bytes(8);
  Matcher matcher_{link_, transfers_};
};

TEST_F(MatcherTest, ReceivesOfATagMatchInTheOrderOfTheirPosts) {
  Request& first = post(1);
  Request& second = post(1);
  post(2);
  EXPECT_EQ(match(1), &first);
  EXPECT_EQ(match(1), &second);
  EXPECT_EQ(match(1), nullptr);
  EXPECT_EQ(matcher_.posted(), 1u);
}

TEST_F(MatcherTest, AnyTagGetsAMessageWhenItWasPostedFirst) {
  Request& any = post(OH_ANY_TAG);
  Request& exact = post(1);
  EXPECT_FALSE(matcher_.has_no_wildcards());
  EXPECT_EQ(match(1), &any);
  EXPECT_EQ(match(1), &exact);
  EXPECT_TRUE(matcher_.has_no_wildcards());
}

TEST_F(MatcherTest, AnEarlierReceiveOfTheTagComesBeforeAnyTag) {
  Request& exact = post(1);
  Request& any = post(OH_ANY_TAG);
  EXPECT_EQ(match(1), &exact);
  EXPECT_EQ(match(2), &any);
}

TEST_F(MatcherTest, WildcardsDoNotSeeTheLibrarysTags) {
  post(OH_ANY_TAG);
  post_any_source(OH_ANY_TAG);
  offered();
  EXPECT_EQ(match(OH_TAG_MAX + 1), nullptr);
}

TEST_F(MatcherTest, AnySourceComparesWithReceivesOfThePeer) {
  Request& first = post(1);
  Request& any = post_any_source(1);
  offered();
  Request& last = post(1);
  EXPECT_EQ(match(1), &first);
  EXPECT_EQ(match(1), &any);
  EXPECT_EQ(match(1), &last);
}

// The rule of any_source.h: unexpected messages are offered to the receive first.
TEST_F(MatcherTest, AnySourceGetsNothingBeforeItWasOffered) {
  Request& any = post_any_source(1);
  EXPECT_EQ(match(1), nullptr);
  offered();
  EXPECT_EQ(match(1), &any);
}

TEST_F(MatcherTest, AReceiveThatComesBackGetsItsFormerPlace) {
  Request& first = post(1);
  Request& second = post(1);
  EXPECT_EQ(match(1), &first);
  matcher_.insert(&first);
  EXPECT_EQ(match(1), &first);
  EXPECT_EQ(match(1), &second);
}

TEST_F(MatcherTest, ACancelledReceiveGetsNothing) {
  Request& any = post(OH_ANY_TAG);
  Request& first = post(1);
  Request& second = post(1);
  EXPECT_TRUE(matcher_.cancel(&any, /*force=*/false));
  EXPECT_TRUE(matcher_.cancel(&first, /*force=*/false));
  EXPECT_EQ(match(1), &second);
  EXPECT_EQ(matcher_.posted(), 0u);
}

// Each epoch restarts the counts of messages; tags without receives restart on their next use.
TEST_F(MatcherTest, AnEpochStartsTheCountsAgain) {
  Request& receive = post(1);
  matcher_.tag_of(1).arrived = 3;
  matcher_.tag_of(2).arrived = 4;
  EXPECT_TRUE(unit::is_ok(matcher_.begin_epoch(1)));
  EXPECT_EQ(matcher_.tag_of(1).arrived, 0u);
  EXPECT_EQ(matcher_.find_current(2), nullptr);
  EXPECT_EQ(matcher_.tag_of(2).arrived, 0u);
  EXPECT_EQ(match(1), &receive);
}

TEST_F(MatcherTest, ALostTagIsNotCurrent) {
  TagRx& tag = matcher_.tag_of(1);
  EXPECT_EQ(matcher_.find_current(1), &tag);
  tag.lost = true;
  EXPECT_EQ(matcher_.find_current(1), nullptr);
}

TEST_F(MatcherTest, UnexpectedMessagesAreFoundByTag) {
  UnexpectedQueue queue;
  queue.keep(matcher_.tag_of(1).unexpected, Rts{.tag = 1, .op = 1});
  queue.keep(matcher_.tag_of(2).unexpected, Rts{.tag = 2, .op = 2});
  EXPECT_EQ(matcher_.first_unexpected(2, queue)->op, 2u);
  EXPECT_EQ(matcher_.first_unexpected(OH_ANY_TAG, queue)->op, 1u);
  EXPECT_EQ(matcher_.first_unexpected(3, queue), nullptr);
}

TEST_F(MatcherTest, AMessageInPlaceNeedsAReceiveThatWasOffered) {
  post(1);
  EXPECT_TRUE(unit::fails_with(matcher_.match_in_place(matcher_.tag_of(1), 0), OH_ERR_PROTOCOL));
}

TEST_F(MatcherTest, TheEndOfTheLinkEndsAllReceivesOfThePeer) {
  Request& exact = post(1);
  Request& any = post(OH_ANY_TAG);
  Request& any_source = post_any_source(1);
  {
    LinkGuard guard(link_);
    matcher_.fail_all(error(OH_ERR_PEER_LOST, "gone"));
  }
  EXPECT_EQ(exact.status.code(), OH_ERR_PEER_LOST);
  EXPECT_EQ(any.status.code(), OH_ERR_PEER_LOST);
  EXPECT_FALSE(any_source.ended());
  EXPECT_TRUE(any_source_.take(&any_source));
  EXPECT_EQ(matcher_.posted(), 0u);
}

}  // namespace
}  // namespace matcher_test
