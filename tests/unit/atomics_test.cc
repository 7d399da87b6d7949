// SPDX-License-Identifier: Apache-2.0
//
// Atomics over a fake link: which operations the owner rejects, and which replies count.
#include "one_sided/atomics.h"

#include "unit/fake_link.h"
#include "unit/support.h"

namespace unit::atomics_test {
namespace {

using namespace oh;

struct AtomicsSide {
  AtomicsSide() { link.my_bell = &page.doorbell(); }
  FakeLink fakes;
  Link& link = fakes.link;
  ControlPage page = std::move(*ControlPage::create());
  RegionTable regions{page};
  ImmediateCopies copies{link};
  Atomics atomics{link, regions, copies};

  std::vector<Frame> take_frames() { return std::exchange(fakes.channel->frames, {}); }
};

class AtomicsTest : public ::testing::Test {
 protected:
  void carry(AtomicsSide& from, AtomicsSide& to) {
    for (const Frame& frame : from.take_frames()) EXPECT_TRUE(is_ok(to.atomics.on_frame(frame)));
  }
  Result<uint64_t> run(uint64_t offset, const AtomicOp& op) {
    const uint32_t name = *ours_.atomics.post(target_, offset, op);
    EXPECT_FALSE(ours_.atomics.take(name));
    carry(ours_, owner_);
    carry(owner_, ours_);
    std::optional<Result<uint64_t>> answer = ours_.atomics.take(name);
    EXPECT_FALSE(ours_.atomics.take(name)) << "taken twice";
    return answer ? std::move(*answer) : error(OH_ERR_SYSTEM, "no answer");
  }
  void add_region(RegionAccess access) {
    region_ = *owner_.regions.add(words_, sizeof(words_), nullptr, access);
    target_.index = region_->index;
    target_.version = region_->version;
  }

  AtomicsSide ours_;
  AtomicsSide owner_;
  uint64_t words_[4] = {5, 6, 7, 8};
  std::shared_ptr<RegionRecord> region_;
  RemoteTarget target_;
};

TEST_F(AtomicsTest, TheOwnerCarriesThemOut) {
  add_region(RegionAccess::kReadWrite);
  EXPECT_EQ(*run(8, {AtomicOp::Kind::kAdd, 10}), 6u);
  EXPECT_EQ(words_[1], 16u);
  EXPECT_EQ(*run(8, {AtomicOp::Kind::kCompareSwap, 1, 15}), 16u);
  EXPECT_EQ(words_[1], 16u);
  EXPECT_EQ(*run(8, {AtomicOp::Kind::kCompareSwap, 1, 16}), 16u);
  EXPECT_EQ(words_[1], 1u);
}

TEST_F(AtomicsTest, BegunOnesAreTakenByTheirNames) {
  add_region(RegionAccess::kReadWrite);
  const uint32_t first = *ours_.atomics.begin(target_, 0, {AtomicOp::Kind::kAdd, 10});
  const uint32_t second = *ours_.atomics.begin(target_, 0, {AtomicOp::Kind::kAdd, 1});
  EXPECT_NE(first, second);
  EXPECT_FALSE(ours_.atomics.take(second));
  carry(ours_, owner_);
  carry(owner_, ours_);
  EXPECT_EQ(**ours_.atomics.take(second), 15u);
  EXPECT_EQ(**ours_.atomics.take(first), 5u);
}

TEST_F(AtomicsTest, TheOwnerRefusesWhatItMust) {
  const AtomicOp op{AtomicOp::Kind::kAdd, 1};
  add_region(RegionAccess::kReadWrite);
  EXPECT_TRUE(fails_with(run(1, op), OH_ERR_INVALID));
  EXPECT_TRUE(fails_with(run(sizeof(words_) - 7, op), OH_ERR_RANGE));
  EXPECT_TRUE(fails_with(run(UINT64_MAX, op), OH_ERR_RANGE));
  owner_.regions.retire(*region_);
  EXPECT_TRUE(fails_with(run(0, op), OH_ERR_RETIRED));
  add_region(RegionAccess::kReadOnly);
  EXPECT_TRUE(fails_with(run(0, op), OH_ERR_READ_ONLY));
  add_region(RegionAccess::kBatch);
  EXPECT_TRUE(fails_with(run(0, op), OH_ERR_NOT_VIABLE));
  EXPECT_TRUE(owner_.regions.withdraw(*region_)) << "it was taken from its sender";
  EXPECT_EQ(words_[0], 5u);
}

TEST_F(AtomicsTest, FramesOfNoCorrectPeerBreakTheProtocol) {
  add_region(RegionAccess::kReadWrite);
  const uint32_t name = *ours_.atomics.post(target_, 0, {AtomicOp::Kind::kAdd, 1});
  std::vector<Frame> asked = ours_.take_frames();
  ASSERT_EQ(asked.size(), 1u);
  for (uint32_t kind : {0u, 3u, UINT32_MAX}) {
    Frame wrong = asked[0];
    wrong.number = kind;
    EXPECT_TRUE(fails_with(owner_.atomics.on_frame(wrong), OH_ERR_PROTOCOL, "of kind"));
  }
  EXPECT_TRUE(is_ok(owner_.atomics.on_frame(asked[0])));
  std::vector<Frame> answers = owner_.take_frames();
  ASSERT_EQ(answers.size(), 1u);
  Frame other = answers[0];
  ++other.slot;
  EXPECT_TRUE(is_ok(ours_.atomics.on_frame(other))) << "of an operation that was given up";
  EXPECT_TRUE(is_ok(ours_.atomics.on_frame(answers[0])));
  EXPECT_TRUE(fails_with(ours_.atomics.on_frame(answers[0]), OH_ERR_PROTOCOL, "twice"));
  EXPECT_EQ(**ours_.atomics.take(name), 5u);
}

TEST_F(AtomicsTest, TheAnswerOfOneThatWasGivenUpIsIgnored) {
  add_region(RegionAccess::kReadWrite);
  const uint32_t name = *ours_.atomics.post(target_, 0, {AtomicOp::Kind::kAdd, 1});
  ours_.atomics.abandon(name);
  carry(ours_, owner_);
  carry(owner_, ours_);
  EXPECT_FALSE(ours_.atomics.take(name));
  EXPECT_EQ(words_[0], 6u) << "it was carried out all the same";
}

}  // namespace
}  // namespace unit::atomics_test
