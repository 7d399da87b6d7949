// SPDX-License-Identifier: Apache-2.0
//
// StagingPath at both ends of a link. The test replaces the message streams: it moves the bytes of
// a run when it wants to.
#include "path/staging/staging_path.h"

#include "unit/path_side.h"

namespace unit::staging_path_test {
namespace {

using namespace oh;

struct Side : PathSide {
  StagingPath path{context()};
};

class StagingPathTest : public PathTest<Side> {
 protected:
  // Blocks whose bytes are never moved.
  void prepare_sizes(size_t count, uint64_t size) {
    std::vector<Block> blocks;
    for (size_t i = 0; i < count; ++i) blocks.push_back({nullptr, 2 * i * size, size});
    unit::prepare(operation_, OpKind::kPut, *region_, std::move(blocks));
  }
  static Bytes bytes_of(Request& run) {
    Bytes bytes;
    while (bytes.size() < run.size) {
      const std::span<uint8_t> some = run.run.at(bytes.size());
      bytes.insert(bytes.end(), some.begin(), some.end());
    }
    return bytes;
  }
  // Moves the bytes of one run, as the streams of both sides do, and ends it on both.
  static void stream(Side& from, Side& to) {
    ASSERT_EQ(from.streams.offered.size(), 1u);
    ASSERT_EQ(to.streams.incoming.size(), 1u);
    Request& out = *from.streams.offered.front();
    Request& in = *to.streams.incoming.front();
    ASSERT_EQ(in.theirs, out.op);
    ASSERT_EQ(in.size, out.size);
    const Bytes bytes = bytes_of(out);
    for (uint64_t at = 0; at < bytes.size();) {
      const std::span<uint8_t> some = in.run.at(at);
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), some.size(), some.begin());
      at += some.size();
    }
    out.phase = Phase::kDirect;  // all parts were sent
    if (out.serves_peer()) from.streams.end(&out, {});
    to.streams.end(&in, {});
  }
};

TEST_F(StagingPathTest, APutEndsWithItsAck) {
  prepare(OpKind::kPut);
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_EQ(initiator_.frames().size(), 1u) << "both blocks go together";
  EXPECT_TRUE(is_ok(arrive()));
  stream(initiator_, target_);
  EXPECT_TRUE(initiator_.ends.empty());
  EXPECT_TRUE(is_ok(answer()));
  EXPECT_TRUE(initiator_.ended_with(OH_OK));
  EXPECT_TRUE(are_equal(operation_));
}

TEST_F(StagingPathTest, AGetEndsWithItsLastByte) {
  begin(OpKind::kGet);
  EXPECT_TRUE(is_ok(answer()));
  stream(target_, initiator_);
  EXPECT_TRUE(initiator_.ended_with(OH_OK));
  EXPECT_TRUE(are_equal(operation_));
  EXPECT_TRUE(target_.frames().empty()) << "a get needs no ack";
}

// The ack of a put whose last part is still queued in the channel does not end it.
TEST_F(StagingPathTest, AnAckBeforeTheLastPartHasLeftWaits) {
  begin(OpKind::kPut);
  Request* run = initiator_.streams.offered.front();
  run->phase = Phase::kStream;
  target_.streams.end(target_.streams.incoming.front(), {});
  EXPECT_TRUE(is_ok(answer()));
  EXPECT_TRUE(initiator_.ends.empty());
  EXPECT_TRUE(run->acknowledged);
  initiator_.streams.end(run, {});
  EXPECT_TRUE(initiator_.ended_with(OH_OK));
}

TEST_F(StagingPathTest, RunsAreBounded) {
  prepare_sizes(513, 8);
  EXPECT_TRUE(initiator_.path.push(operation_));
  std::vector<Frame> frames = initiator_.take_frames();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].length, 512 * 8u);
  EXPECT_EQ(frames[1].length, 8u);
  EXPECT_EQ(frames[1].address, 2 * 512 * 8u) << "a single block has no list";
  EXPECT_EQ(frames[1].payload_size, 0u);
}

TEST_F(StagingPathTest, LargeBlocksTravelAlone) {
  prepare_sizes(2, (1 << 20) - 1);
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_EQ(initiator_.frames().size(), 2u);
}

// The runs of a link are bounded, whatever is to be moved; runs that end make room.
TEST_F(StagingPathTest, ALinkHasSoManyRunsUnderWay) {
  prepare_sizes(300, 1 << 20);
  EXPECT_FALSE(initiator_.path.push(operation_));
  const size_t most = initiator_.frames().size();
  EXPECT_LT(most, 300u);
  EXPECT_FALSE(initiator_.path.push(operation_));
  EXPECT_EQ(initiator_.frames().size(), most);
  initiator_.streams.end(initiator_.streams.offered.front(), {});
  EXPECT_FALSE(initiator_.path.push(operation_));
  EXPECT_EQ(initiator_.frames().size(), most + 1);
  initiator_.path.fail(operation_, error(OH_ERR_PEER_LOST, "gone"));
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_PEER_LOST));
}

TEST_F(StagingPathTest, AFullChannelIsTriedAgain) {
  prepare(OpKind::kPut);
  initiator_.fakes.channel->room = false;
  EXPECT_FALSE(initiator_.path.push(operation_));
  EXPECT_TRUE(initiator_.streams.offered.empty());
  initiator_.fakes.channel->room = true;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  stream(initiator_, target_);
  EXPECT_TRUE(are_equal(operation_));
}

TEST_F(StagingPathTest, AReadOnlyRegionIsNotWritten) {
  region_ = *target_.regions.add(remote_.data(), remote_.size(), nullptr, RegionAccess::kReadOnly);
  prepare(OpKind::kPut);
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  EXPECT_TRUE(is_ok(answer()));
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_READ_ONLY));
  EXPECT_TRUE(target_.streams.incoming.empty());
}

TEST_F(StagingPathTest, TheTargetRefusesWhatItHasNot) {
  for (const OpKind kind : {OpKind::kPut, OpKind::kGet}) {
    for (const bool retired : {false, true}) {
      const std::shared_ptr<RegionRecord> region =
          *target_.regions.add(remote_.data(), remote_.size(), nullptr);
      unit::prepare(operation_, kind, *region, {{local_.data(), 900, 101}});
      if (retired) target_.regions.retire(*region);
      EXPECT_TRUE(initiator_.path.push(operation_));
      EXPECT_TRUE(is_ok(arrive()));
      EXPECT_TRUE(is_ok(answer()));
      EXPECT_TRUE(initiator_.ended_with(retired ? OH_ERR_RETIRED : OH_ERR_RANGE));
      EXPECT_TRUE(target_.streams.incoming.empty() && target_.streams.offered.empty());
      initiator_.ends.clear();
    }
  }
}

TEST_F(StagingPathTest, ListsThatDoNotAddUpBreakTheProtocol) {
  prepare(OpKind::kPut);
  EXPECT_TRUE(initiator_.path.push(operation_));
  const Frame good = initiator_.take_frames().front();
  Frame bad = good;
  bad.length += 1;
  EXPECT_TRUE(fails_with(target_.path.on_frame(bad), OH_ERR_PROTOCOL)) << "bytes without a block";
  bad = good;
  bad.length -= 1;
  EXPECT_TRUE(fails_with(target_.path.on_frame(bad), OH_ERR_PROTOCOL)) << "a block without bytes";
  bad = good;
  bad.payload_size -= 1;
  EXPECT_TRUE(fails_with(target_.path.on_frame(bad), OH_ERR_PROTOCOL)) << "half an entry";
  EXPECT_TRUE(target_.streams.incoming.empty());
  EXPECT_TRUE(is_ok(target_.path.on_frame(good)));
}

// The peer drops it, too.
TEST_F(StagingPathTest, AGetThatWasCancelledIsRejectedWhenItIsReady) {
  begin(OpKind::kGet);
  EXPECT_FALSE(initiator_.path.has_begun(operation_));
  EXPECT_TRUE(initiator_.path.cancel(operation_, error(OH_ERR_TIMEOUT, "late"), false));
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_TIMEOUT));
  EXPECT_TRUE(is_ok(answer()));
  ASSERT_EQ(initiator_.fakes.channel->types(), std::vector{FrameType::kReject});
  EXPECT_EQ(initiator_.frames().front().op, target_.streams.offered.front()->op);
}

TEST_F(StagingPathTest, BytesThatWereNotRequestedBreakTheProtocol) {
  begin(OpKind::kGet);
  Frame ready = target_.take_frames().front();
  ready.length -= 1;
  EXPECT_TRUE(fails_with(initiator_.path.on_frame(ready), OH_ERR_PROTOCOL)) << "too few";
  ready.length += 1;
  EXPECT_TRUE(is_ok(initiator_.path.on_frame(ready)));
  EXPECT_TRUE(fails_with(initiator_.path.on_frame(ready), OH_ERR_PROTOCOL)) << "twice";
}

// Parts in flight cannot be cancelled before the operation is given up.
TEST_F(StagingPathTest, WhatIsInFlightIsCancelledWhenItIsGivenUp) {
  prepare(OpKind::kPut);
  EXPECT_TRUE(initiator_.path.push(operation_));
  initiator_.streams.offered.front()->phase = Phase::kStream;
  initiator_.streams.busy = true;
  EXPECT_TRUE(initiator_.path.has_begun(operation_));
  const Status late = error(OH_ERR_TIMEOUT, "late");
  EXPECT_FALSE(initiator_.path.cancel(operation_, late, /*give_up=*/false));
  EXPECT_TRUE(initiator_.ends.empty());
  EXPECT_TRUE(initiator_.path.cancel(operation_, late, /*give_up=*/true));
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_TIMEOUT));
}

TEST_F(StagingPathTest, ARegionIsLeftOnceItsRunsHaveEnded) {
  begin(OpKind::kPut);
  target_.regions.retire(*region_);
  target_.streams.busy = true;
  EXPECT_FALSE(target_.path.leave(*region_));
  target_.streams.busy = false;
  EXPECT_TRUE(target_.path.leave(*region_));
  initiator_.streams.offered.front()->phase = Phase::kDirect;
  EXPECT_TRUE(is_ok(answer()));
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_RETIRED));
}

// An engine may still access the memory of a run that has ended.
TEST_F(StagingPathTest, ARegionIsNotLeftWhileItsMemoryIsInDoubt) {
  begin(OpKind::kPut);
  auto copy = std::make_shared<StagedCopy>();
  copy->busy = true;
  Request* run = target_.streams.incoming.front();
  run->doubts.push_back({.staged = copy});
  target_.streams.end(run, error(OH_ERR_IN_DOUBT, "an engine has it"));
  target_.regions.retire(*region_);
  EXPECT_FALSE(target_.path.leave(*region_));
  EXPECT_FALSE(target_.path.has_left());
  copy->busy = false;
  EXPECT_TRUE(target_.path.leave(*region_));
}

// Device memory on either side needs a progress thread.
TEST_F(StagingPathTest, DeviceMemoryNeedsTheProgressThread) {
  LocalBuffer local;
  EXPECT_TRUE(is_ok(initiator_.path.admit(local, /*put=*/true)));
  EXPECT_EQ(initiator_.fakes.owner.serves, 0);
  local.on_device = true;
  EXPECT_TRUE(is_ok(initiator_.path.admit(local, /*put=*/true)));
  EXPECT_EQ(initiator_.fakes.owner.serves, 1);
}

}  // namespace
}  // namespace unit::staging_path_test
