// SPDX-License-Identifier: Apache-2.0
//
// FramesPath at both ends of a link: the test decides when pushed frames arrive.
#include "path/frames/frames_path.h"

#include "unit/path_side.h"

namespace unit::frames_path_test {
namespace {

using namespace oh;

struct Side : PathSide {
  FramesPath path{context()};
};

class FramesPathTest : public PathTest<Side> {
 protected:
  // OneSided looks up the operation of a reply.
  Status answer() {
    for (const Frame& frame : target_.take_frames()) {
      OH_RETURN_IF_ERROR(initiator_.path.on_answer(operation_, frame));
    }
    return {};
  }
};

TEST_F(FramesPathTest, APutEndsWithItsAck) {
  prepare(OpKind::kPut);
  const Bytes before = remote_;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_TRUE(are_equal(operation_));
  EXPECT_TRUE(std::equal(before.begin() + 400, before.begin() + 600, remote_.begin() + 400));
  EXPECT_TRUE(initiator_.ends.empty());
  EXPECT_TRUE(is_ok(answer()));
  EXPECT_TRUE(initiator_.ended_with(OH_OK));
}

TEST_F(FramesPathTest, AGetEndsWithItsLastByte) {
  begin(OpKind::kGet);
  EXPECT_FALSE(target_.path.idle());
  EXPECT_TRUE(target_.path.answer());
  EXPECT_TRUE(target_.path.idle());
  EXPECT_TRUE(is_ok(answer()));
  EXPECT_TRUE(are_equal(operation_));
  EXPECT_TRUE(initiator_.ended_with(OH_OK));
}

// A put or get that has begun cannot be cancelled.
TEST_F(FramesPathTest, APutHasBegunWithItsFirstFrameAndAGetWithItsFirstByte) {
  prepare(OpKind::kPut);
  EXPECT_FALSE(initiator_.path.has_begun(operation_));
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(initiator_.path.has_begun(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  begin(OpKind::kGet);
  EXPECT_FALSE(initiator_.path.has_begun(operation_));
  EXPECT_TRUE(target_.path.answer());
  EXPECT_TRUE(is_ok(answer()));
  EXPECT_TRUE(initiator_.path.has_begun(operation_));
}

TEST_F(FramesPathTest, AFullChannelIsTriedAgain) {
  prepare(OpKind::kPut);
  initiator_.fakes.channel->room = false;
  EXPECT_FALSE(initiator_.path.push(operation_));
  initiator_.fakes.channel->room = true;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_TRUE(are_equal(operation_));
}

TEST_F(FramesPathTest, WhatIsOutsideOfTheRegionIsRefused) {
  for (OpKind kind : {OpKind::kPut, OpKind::kGet}) {
    prepare(kind, /*second=*/900);
    const Bytes before = remote_;
    EXPECT_TRUE(initiator_.path.push(operation_));
    EXPECT_TRUE(is_ok(arrive()));
    EXPECT_TRUE(std::equal(before.begin() + 400, before.end(), remote_.begin() + 400));
    initiator_.ends.clear();
    EXPECT_TRUE(is_ok(answer()));
    EXPECT_TRUE(initiator_.ended_with(OH_ERR_RANGE));
  }
}

TEST_F(FramesPathTest, AReadOnlyRegionIsReadAndNotWritten) {
  region_ = *target_.regions.add(remote_.data(), remote_.size(), nullptr, RegionAccess::kReadOnly);
  prepare(OpKind::kPut);
  const Bytes before = remote_;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_TRUE(is_ok(answer()));
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_READ_ONLY));
  EXPECT_EQ(remote_, before);
  initiator_.ends.clear();
  begin(OpKind::kGet);
  EXPECT_TRUE(target_.path.answer());
  EXPECT_TRUE(is_ok(answer()));
  EXPECT_TRUE(are_equal(operation_));
  EXPECT_TRUE(initiator_.ended_with(OH_OK));
}

TEST_F(FramesPathTest, ARetiredRegionEndsWhatIsServed) {
  begin(OpKind::kGet);
  target_.regions.retire(*region_);
  target_.path.retire(*region_);
  EXPECT_TRUE(target_.path.idle());
  EXPECT_TRUE(is_ok(answer()));
  // OneSided would drop the operation at the first of its two rejections.
  ASSERT_FALSE(initiator_.ends.empty());
  EXPECT_EQ(initiator_.ends.front().code(), OH_ERR_RETIRED);
}

TEST_F(FramesPathTest, BytesThatNobodyAskedForBreakTheProtocol) {
  prepare(OpKind::kGet);
  Frame frame;
  frame.type = FrameType::kData;
  frame.number = 2;
  frame.payload = local_.data();
  frame.payload_size = 8;
  EXPECT_EQ(initiator_.path.on_answer(operation_, frame).code(), OH_ERR_PROTOCOL) << "no block";
  frame.number = 1;
  frame.address = 196;
  EXPECT_EQ(initiator_.path.on_answer(operation_, frame).code(), OH_ERR_PROTOCOL) << "its end";
  EXPECT_EQ(target_.path.on_frame(frame).code(), OH_ERR_PROTOCOL) << "no put is under way";
  EXPECT_TRUE(initiator_.ends.empty());
}

// A put that has been sent in part is aborted, so that another one can follow.
TEST_F(FramesPathTest, ACancelledPutIsBrokenOff) {
  prepare(OpKind::kPut);
  EXPECT_TRUE(initiator_.path.push(operation_));
  std::vector<Frame>& frames = initiator_.frames();
  ASSERT_FALSE(frames.empty());
  // As if only half of the first block had been sent.
  frames.resize(1);
  frames.front().payload_size = 150;
  operation_.block = 0;
  operation_.offset = 150;
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_TRUE(initiator_.path.cancel(operation_, error(OH_ERR_CANCELLED, "cancelled"), false));
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_CANCELLED));
  EXPECT_TRUE(is_ok(arrive()));
  operation_.block = operation_.offset = 0;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_TRUE(are_equal(operation_));
}

}  // namespace
}  // namespace unit::frames_path_test
