// SPDX-License-Identifier: Apache-2.0
//
// FramesPath at both ends of a link: what one side pushes the other one gets when the test says so.
#include "path/frames/frames_path.h"

#include "path/direct/transfers.h"
#include "path/staging/staging_path.h"
#include "unit/fake_link.h"
#include "unit/support.h"

namespace unit {
namespace {

using namespace oh;

class NoStreams final : public RunStreams {
 public:
  void await_cts(Request*) override {}
  Status begin_incoming(Request*, uint64_t) override { return {}; }
  void refuse(Request*, const Status&) override {}
  bool cancel(Request*, const Status&, bool) override { return true; }
  bool stop(Request*, const Status&) override { return true; }
};

struct Side final : PathEvents {
  Side()
      : board(std::move(*Board::create())),
        regions(board),
        transfers(fakes.link),
        path({fakes.link, *this, regions, transfers, streams, RmaUse::kOff}) {}
  void moved(Operation&, Status status) override { ends.push_back(std::move(status)); }
  std::vector<Frame>& frames() { return fakes.channel->frames; }

  FakeLink fakes;
  Board board;
  RegionTable regions;
  Transfers transfers;
  NoStreams streams;
  FramesPath path;
  std::vector<Status> ends;
};

class FramesPathTest : public ::testing::Test {
 protected:
  FramesPathTest() : remote_(Random(1).bytes(1000)), local_(Random(2).bytes(1000)) {
    region_ = *target_.regions.add(remote_.data(), remote_.size(), nullptr);
  }
  // An operation on two blocks, which do not touch.
  void prepare(OpKind kind) {
    operation_.kind = kind;
    operation_.op = 7;
    operation_.region = region_->index;
    operation_.version = region_->version;
    blocks_ = {{local_.data(), 100, 300}, {local_.data() + 400, 600, 200}};
    operation_.blocks = blocks_;
    operation_.missing = 500;
    initiator_.path.begin(operation_);
  }
  // The target gets what the initiator has pushed.
  Status arrive() {
    std::vector<Frame> frames = std::exchange(initiator_.frames(), {});
    for (const Frame& frame : frames) OH_RETURN_IF_ERROR(target_.path.on_frame(frame));
    return {};
  }
  // The initiator gets the answers.
  Status answer() {
    std::vector<Frame> frames = std::exchange(target_.frames(), {});
    for (const Frame& frame : frames) {
      OH_RETURN_IF_ERROR(initiator_.path.on_answer(operation_, frame));
    }
    return {};
  }
  // Whether both blocks are the same at both sides.
  bool are_equal() const {
    for (const Block& block : blocks_) {
      if (std::memcmp(block.local, remote_.data() + block.remote_offset, block.size) != 0) {
        return false;
      }
    }
    return true;
  }

  Side initiator_;
  Side target_;
  Bytes remote_;
  Bytes local_;
  std::shared_ptr<RegionRecord> region_;
  std::vector<Block> blocks_;
  Operation operation_;
};

TEST_F(FramesPathTest, APutEndsWithItsAck) {
  prepare(OpKind::kPut);
  const Bytes before = remote_;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_TRUE(are_equal());
  EXPECT_TRUE(std::equal(before.begin() + 400, before.begin() + 600, remote_.begin() + 400));
  EXPECT_TRUE(initiator_.ends.empty());
  EXPECT_TRUE(is_ok(answer()));
  ASSERT_EQ(initiator_.ends.size(), 1u);
  EXPECT_TRUE(is_ok(initiator_.ends.front()));
}

TEST_F(FramesPathTest, AGetEndsWithItsLastByte) {
  prepare(OpKind::kGet);
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_FALSE(target_.path.idle());
  EXPECT_TRUE(target_.path.answer());
  EXPECT_TRUE(target_.path.idle());
  EXPECT_TRUE(is_ok(answer()));
  EXPECT_TRUE(are_equal());
  ASSERT_EQ(initiator_.ends.size(), 1u);
  EXPECT_TRUE(is_ok(initiator_.ends.front()));
}

TEST_F(FramesPathTest, AFullChannelIsTriedAgain) {
  prepare(OpKind::kPut);
  initiator_.fakes.channel->room = false;
  EXPECT_FALSE(initiator_.path.push(operation_));
  initiator_.fakes.channel->room = true;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_TRUE(are_equal());
}

TEST_F(FramesPathTest, WhatIsOutsideOfTheRegionIsRefused) {
  for (OpKind kind : {OpKind::kPut, OpKind::kGet}) {
    prepare(kind);
    blocks_[1].remote_offset = 900;
    const Bytes before = remote_;
    operation_.block = operation_.offset = 0;
    EXPECT_TRUE(initiator_.path.push(operation_));
    EXPECT_TRUE(is_ok(arrive()));
    EXPECT_TRUE(std::equal(before.begin() + 400, before.end(), remote_.begin() + 400));
    initiator_.ends.clear();
    EXPECT_TRUE(is_ok(answer()));
    ASSERT_FALSE(initiator_.ends.empty());
    EXPECT_EQ(initiator_.ends.front().code(), OH_ERR_RANGE);
  }
}

TEST_F(FramesPathTest, ARetiredRegionEndsWhatIsServed) {
  prepare(OpKind::kGet);
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  target_.regions.retire(*region_);
  target_.path.retire(*region_);
  EXPECT_TRUE(target_.path.idle());
  EXPECT_TRUE(is_ok(answer()));
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

// A put that is half on the wire is broken off, so that another one can follow.
TEST_F(FramesPathTest, ACancelledPutIsBrokenOff) {
  prepare(OpKind::kPut);
  EXPECT_TRUE(initiator_.path.push(operation_));
  std::vector<Frame>& frames = initiator_.frames();
  ASSERT_FALSE(frames.empty());
  // As if only half of the first block had found room.
  frames.resize(1);
  frames.front().payload_size = 150;
  operation_.block = 0;
  operation_.offset = 150;
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_TRUE(initiator_.path.cancel(operation_, error(OH_ERR_CANCELLED, "cancelled"), false));
  ASSERT_EQ(initiator_.ends.size(), 1u);
  EXPECT_EQ(initiator_.ends.front().code(), OH_ERR_CANCELLED);
  EXPECT_TRUE(is_ok(arrive()));
  operation_.block = operation_.offset = 0;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_TRUE(are_equal());
}

}  // namespace
}  // namespace unit
