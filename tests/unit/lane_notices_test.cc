// SPDX-License-Identifier: Apache-2.0
#include "lane/lane_notices.h"

#include "unit/support.h"

namespace lane_notices_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

class LaneNoticesTest : public ::testing::Test {
 protected:
  LaneNoticesTest() { notices_.open(&page_); }

  LaneNotices::Page page_ = {};
  LaneNotices notices_;
};

TEST_F(LaneNoticesTest, AFailureStaysAndIsReportedOnce) {
  page_[3].failed[1].fault = OH_LANE_TIMEOUT;
  EXPECT_TRUE(is_ok(notices_.failure(3, LaneSide::kSend)));
  EXPECT_TRUE(fails_with(notices_.failure(3, LaneSide::kRecv), OH_ERR_TIMEOUT, "lane 3"));
  EXPECT_TRUE(fails_with(notices_.take_error("the peer"), OH_ERR_TIMEOUT, "with the peer"));
  EXPECT_TRUE(is_ok(notices_.take_error("the peer")));
  EXPECT_FALSE(notices_.failure(3, LaneSide::kRecv).ok());
}

TEST_F(LaneNoticesTest, AWarningIsReportedOnceAndFailsNothing) {
  page_[2].warned[0] = {OH_LANE_RANGE, /*bytes=*/9, /*capacity=*/8, /*position=*/0};
  EXPECT_TRUE(is_ok(notices_.failure(2, LaneSide::kSend)));
  EXPECT_TRUE(fails_with(notices_.take_error("the peer"), OH_ERR_RANGE, "9 bytes"));
  EXPECT_TRUE(is_ok(notices_.take_error("the peer")));
}

TEST_F(LaneNoticesTest, AnErrorOfAnEpochThatHasEndedIsStillReported) {
  page_[0].failed[0].fault = OH_LANE_PROTOCOL;
  notices_.clear(0);
  EXPECT_TRUE(is_ok(notices_.failure(0, LaneSide::kSend)));
  EXPECT_TRUE(fails_with(notices_.take_error("the peer"), OH_ERR_PROTOCOL, "lane 0"));
  EXPECT_TRUE(is_ok(notices_.take_error("the peer")));
}

TEST_F(LaneNoticesTest, OneLaneOrAllOfThemAreAborted) {
  notices_.abort(1, true);
  EXPECT_EQ(page_[1].abort.word, 1u);
  EXPECT_EQ(page_[0].abort.word, 0u);
  notices_.abort(1, false);
  EXPECT_EQ(page_[1].abort.word, 0u);
  notices_.abort();
  for (const auto& notice : page_) EXPECT_EQ(notice.abort.word, 1u);
}

}  // namespace
}  // namespace lane_notices_test
