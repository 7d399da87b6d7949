// SPDX-License-Identifier: Apache-2.0
//
// The tables of both sides, over one segment.
#include "path/direct/slot_table.h"

#include "unit/support.h"

namespace slot_table_test {
namespace {

using namespace oh;

class SlotTableTest : public ::testing::Test {
 protected:
  SlotTableTest()
      : our_segment_(std::move(*Segment::create(/*shared=*/false))),
        their_segment_(Segment::alias(*our_segment_)) {
    our_segment_->take_side(0, /*loopback=*/false);
    their_segment_->take_side(1, /*loopback=*/false);
    ours_.open(*our_segment_);
    theirs_.open(*their_segment_);
  }

  static SlotOffer offer_of(const SlotTable::Posted& posted) {
    return {.slot = posted.index, .sequence = posted.sequence, .length = 100};
  }
  // The peer completes the slot.
  void finish(const SlotTable::Posted& posted) {
    EXPECT_TRUE(slot_advance(*posted.slot, posted.sequence, SlotState::kClaimed, SlotState::kDone));
    theirs_.theirs(posted.index).released.store(posted.sequence);
  }

  std::unique_ptr<Segment> our_segment_;
  std::unique_ptr<Segment> their_segment_;
  SlotTable ours_;
  SlotTable theirs_;
};

TEST_F(SlotTableTest, AClaimSeesThePostAndThePostTheClaim) {
  const SlotTable::Posted posted = ours_.post({10, 20, 30, kSlotDevice}, /*attended=*/true);
  ASSERT_TRUE(posted.slot);
  const SlotOffer offer = offer_of(posted);
  EXPECT_TRUE(theirs_.is_posted(offer));
  const TransferSlot& there = theirs_.theirs(posted.index);
  EXPECT_EQ(there.owner_address, 10u);
  EXPECT_EQ(there.owner_length, 20u);
  EXPECT_EQ(there.owner_block, 30u);
  EXPECT_EQ(there.owner_memory, kSlotDevice);
  EXPECT_EQ(there.attended.load(), 1u);
  EXPECT_TRUE(theirs_.claim(offer, {40, 50, 60, 0}));
  EXPECT_EQ(slot_state(posted.slot->word.load()), SlotState::kClaimed);
  EXPECT_EQ(posted.slot->claimer_address, 40u);
  EXPECT_EQ(posted.slot->claimer_length, 50u);
  EXPECT_EQ(posted.slot->claimer_block, 60u);
  // Only one of the two succeeds.
  EXPECT_FALSE(ours_.withdraw(posted.index, OH_OK));
  EXPECT_FALSE(theirs_.is_posted(offer));
}

TEST_F(SlotTableTest, AWithdrawnSlotIsFreeAtOnceAndItsOfferIsOver) {
  const SlotTable::Posted first = ours_.post({}, false);
  EXPECT_TRUE(ours_.withdraw(first.index, OH_OK));
  EXPECT_FALSE(theirs_.is_posted(offer_of(first)));
  EXPECT_FALSE(theirs_.refuse(offer_of(first), OH_ERR_RANGE));
  EXPECT_FALSE(theirs_.ended_with_link(offer_of(first)));
  // The next use has its own sequence number.
  const SlotTable::Posted second = ours_.post({1, 2, 3, 0}, false);
  EXPECT_EQ(second.index, first.index);
  EXPECT_NE(second.sequence, first.sequence);
  EXPECT_FALSE(theirs_.is_posted(offer_of(first)));
  EXPECT_TRUE(theirs_.is_posted(offer_of(second)));
  EXPECT_TRUE(ours_.withdraw(second.index, OH_ERR_PEER_LOST));
  EXPECT_TRUE(theirs_.ended_with_link(offer_of(second)));
}

TEST_F(SlotTableTest, ARefusedSlotEndsWithItsStatus) {
  const SlotTable::Posted posted = ours_.post({10, 20, 30, 0}, false);
  EXPECT_TRUE(theirs_.refuse(offer_of(posted), OH_ERR_TRUNCATED));
  EXPECT_EQ(posted.slot->word.load(),
            slot_word(posted.sequence, SlotState::kDone, OH_ERR_TRUNCATED));
  EXPECT_EQ(posted.slot->claimer_length, 0u);
  EXPECT_FALSE(theirs_.refuse(offer_of(posted), OH_ERR_TRUNCATED));
  EXPECT_FALSE(ours_.withdraw(posted.index, OH_OK));
}

TEST_F(SlotTableTest, SlotsAreFreeOnceBothSidesAreThrough) {
  std::vector<SlotTable::Posted> all;
  while (ours_.has_free()) all.push_back(ours_.post({}, false));
  EXPECT_EQ(all.size(), kSlots);
  EXPECT_FALSE(ours_.post({}, false).slot);
  EXPECT_TRUE(theirs_.claim(offer_of(all[3]), {}));
  ours_.end(all[3].index);
  EXPECT_FALSE(ours_.has_free());
  finish(all[3]);
  EXPECT_TRUE(ours_.has_free());
  const SlotTable::Posted again = ours_.post({}, false);
  EXPECT_EQ(again.index, all[3].index);
  EXPECT_EQ(again.sequence, all[3].sequence + 1);
  EXPECT_FALSE(ours_.has_free());
}

}  // namespace
}  // namespace slot_table_test
