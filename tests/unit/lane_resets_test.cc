// SPDX-License-Identifier: Apache-2.0
//
// LaneResets: both sides of a link within the process, on the fake GPU.
#include "lane/lane_resets.h"

#include "unit/stream_side.h"

namespace unit::lane_resets_test {
namespace {

using namespace oh;

constexpr uint32_t kLane = 3;

struct Side : StreamSide {
  using StreamSide::StreamSide;
  LaneResets resets{link, owners, nullptr};
};

class LaneResetsTest : public StreamSideTest {
 protected:
  void SetUp() override {
    StreamSideTest::SetUp();
    one_.emplace(domain, gpu);
    other_.emplace(domain, gpu);
    for (auto [side, partner] : {std::pair(&*one_, &*other_), std::pair(&*other_, &*one_)}) {
      side->connect(*partner);
      side->resets.introduce(partner->resets);
      side->resets.open(*side->lanes, gpu);
    }
  }
  void TearDown() override {
    watcher->stop();
    one_.reset();
    other_.reset();
    StreamSideTest::TearDown();
  }
  // Whether `count` resets of the lane have ended, and none is in progress.
  static bool has_count(const Side& side, uint64_t count) {
    return side.resets.count(kLane) == count && !side.resets.is_resetting(kLane);
  }
  // Delivers the peer's message that it is ready for an epoch.
  Status hear_ready(Side& side, uint32_t lane, uint8_t epoch) {
    Bytes bytes;
    Writer writer(bytes);
    writer.u32(lane);
    writer.u8(epoch);
    Status status;
    watcher->post([&] { status = side.resets.on_ready(bytes); });
    await_watcher();
    return status;
  }
  static uint64_t sender_at(const Side& side) {
    return side.lanes->slab()->address() +
           kernels::lane_place(side.lanes->slab()->bytes(), kLane).memory +
           offsetof(onehop::detail::LaneMemory, tx.state);
  }
  uint64_t sender(const Side& side) const {
    const Bytes bytes = fake.bytes_at(sender_at(side), sizeof(uint64_t));
    return Reader(bytes).u64();
  }

  std::optional<Side> one_;
  std::optional<Side> other_;
};

TEST_F(LaneResetsTest, BothSidesBeginTheNextEpochTogether) {
  one_->resets.reset(kLane, 0);
  EXPECT_TRUE(eventually([&] { return has_count(*one_, 1) && has_count(*other_, 1); }));
  for (const Side* side : {&*one_, &*other_}) {
    EXPECT_EQ(onehop::detail::epoch_of(sender(*side)), 2);
    EXPECT_EQ(sender(*side) & onehop::detail::kFailed, 0u) << "kernels may take it";
    EXPECT_EQ(side->resets.count(kLane + 1), 0u) << "other lanes go on";
  }
}

// The caller that requests it has not seen that another thread's reset has ended.
TEST_F(LaneResetsTest, AResetThatHasEndedMeanwhileIsNotRepeated) {
  one_->resets.reset(kLane, 0);
  ASSERT_TRUE(eventually([&] { return has_count(*one_, 1) && has_count(*other_, 1); }));
  one_->resets.reset(kLane, 0);
  await_watcher();
  EXPECT_TRUE(has_count(*one_, 1));
}

// Local kernels may still use the lane while a side is not ready.
TEST_F(LaneResetsTest, ASideWaitsForTheOther) {
  other_->peer.reset();  // it neither receives nor sends
  one_->resets.reset(kLane, 0);
  await_watcher();
  EXPECT_TRUE(one_->resets.is_resetting(kLane));
  EXPECT_TRUE(is_ok(hear_ready(*one_, kLane, 1))) << "an epoch that has ended";
  EXPECT_TRUE(one_->resets.is_resetting(kLane));
  EXPECT_TRUE(is_ok(hear_ready(*one_, kLane, 2)));
  EXPECT_TRUE(eventually([&] { return has_count(*one_, 1); }));
}

// The peer has finished this reset, and has begun the next.
TEST_F(LaneResetsTest, AnEarlyWordBeginsTheNextReset) {
  other_->peer.reset();
  one_->resets.reset(kLane, 0);
  EXPECT_TRUE(is_ok(hear_ready(*one_, kLane, 2)));
  EXPECT_TRUE(is_ok(hear_ready(*one_, kLane, 3)));
  EXPECT_TRUE(eventually([&] { return has_count(*one_, 2); }));
  EXPECT_EQ(onehop::detail::epoch_of(sender(*one_)), 3);
}

// An application's kernel holds a half: the lane is taken from it once the GPU has completed all
// its work.
TEST_F(LaneResetsTest, AHalfThatIsHeldIsTakenOnceTheGpuHasBeenIdle) {
  ASSERT_TRUE(eventually([&] {
    Result<bool> open = one_->lanes->is_open();
    return open.ok() && *open;
  }));
  Bytes state;
  Writer(state).u64(sender(*one_) | onehop::detail::kBusy);
  ASSERT_TRUE(fake.write(sender_at(*one_), state));
  const cuda::DevicePtr memory = allocate(4096);
  const cuda::Stream stream = *gpu->take_stream();
  hold(stream, memory);
  one_->resets.reset(kLane, 0);
  EXPECT_TRUE(asks_the_driver());
  EXPECT_TRUE(one_->resets.is_resetting(kLane));
  ASSERT_EQ(fake.release(stream), 0);
  EXPECT_TRUE(eventually([&] { return has_count(*one_, 1) && has_count(*other_, 1); }));
  gpu->give_stream(stream);
  free(memory);
}

// Between the launch and the record of its event only the held turn tells of the kernel.
TEST_F(LaneResetsTest, AResetWaitsForALaunchThatHasNoEventYet) {
  ASSERT_TRUE(eventually([&] {
    Result<bool> open = one_->lanes->is_open();
    return open.ok() && *open;
  }));
  const cuda::Stream stream = *gpu->take_stream();
  {
    HeldTurns turns({&one_->lanes->turn(kLane, LaneSide::kSend)}, {}, *gpu, stream);
    ASSERT_TRUE(is_ok(turns.follow()));
    const uint64_t before = calls("cuLaunchKernelEx");
    one_->resets.reset(kLane, 0);
    EXPECT_TRUE(eventually([&] {
      return calls("cuLaunchKernelEx") > before + 20 || one_->resets.count(kLane) > 0;
    })) << "each round launches the step again";
    EXPECT_EQ(one_->resets.count(kLane), 0u);
    EXPECT_TRUE(is_ok(turns.launched()));
  }
  EXPECT_TRUE(eventually([&] { return has_count(*one_, 1) && has_count(*other_, 1); }));
  gpu->give_stream(stream);
}

TEST_F(LaneResetsTest, NothingIsResetOnceTheLinkIsOver) {
  for (Side* side : {&*one_, &*other_}) side->resets.stop();
  one_->resets.reset(kLane, 0);
  await_watcher();
  EXPECT_FALSE(one_->resets.is_resetting(kLane)) << "nobody waits for it";
  EXPECT_EQ(one_->resets.count(kLane), 0u);
}

TEST_F(LaneResetsTest, MalformedWordsBreakTheProtocol) {
  EXPECT_TRUE(fails_with(hear_ready(*one_, OH_LANES, 2), OH_ERR_PROTOCOL));
  EXPECT_TRUE(fails_with(hear_ready(*one_, kLane, 0), OH_ERR_PROTOCOL));
  EXPECT_TRUE(fails_with(one_->resets.on_ready(Bytes(4)), OH_ERR_PROTOCOL)) << "too short";
  Side none(domain, gpu);
  EXPECT_TRUE(fails_with(hear_ready(none, kLane, 2), OH_ERR_PROTOCOL)) << "no kernels use it";
}

}  // namespace
}  // namespace unit::lane_resets_test
