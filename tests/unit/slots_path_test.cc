// SPDX-License-Identifier: Apache-2.0
//
// SlotsPath at both ends of a link, over one segment and with host memory; the path does not depend
// on which side copies. The test decides when pushed frames arrive.
#include "path/direct/slots_path.h"

#include "link/memory_exchange.h"
#include "transport/local/local_mover.h"
#include "unit/path_side.h"

namespace unit::slots_path_test {
namespace {

using namespace oh;

struct Side : PathSide {
  void open(std::unique_ptr<Segment> segment, int number) {
    segment->take_side(number, /*loopback=*/false);
    link.segment = std::move(segment);
    link.path = OH_PATH_LOCAL;
    link.memory = &memory;
    link.mover = std::make_unique<LocalMover>();
    transfers.start(nullptr);
  }
  // Handles claims and copies; returns whether anything happened.
  bool work() OH_NO_THREAD_ANALYSIS {
    LinkGuard guard(link);
    const bool any = transfers.poll(nullptr);
    return transfers.work(nullptr) || any;
  }

  MemoryExchange memory{link, nullptr, Id{}, {}};
  SlotsPath path{context()};
};

class SlotsPathTest : public PathTest<Side> {
 protected:
  SlotsPathTest() {
    std::unique_ptr<Segment> segment = std::move(*Segment::create(/*shared=*/false));
    initiator_.open(Segment::alias(*segment), 0);
    target_.open(std::move(segment), 1);
  }
  // Single bytes, one block each.
  void prepare_many(size_t count) {
    std::vector<Block> blocks;
    for (size_t i = 0; i < count; ++i) blocks.push_back({local_.data() + 2 * i, 3 * i, 1});
    unit::prepare(operation_, OpKind::kPut, *region_, std::move(blocks));
  }
  // Works until neither side has anything to do.
  void work() {
    while (static_cast<int>(initiator_.work()) | static_cast<int>(target_.work())) {
    }
  }
  // Nothing may be left on either side.
  void TearDown() override {
    work();
    EXPECT_FALSE(initiator_.transfers.in_use());
    EXPECT_FALSE(target_.transfers.in_use());
  }
};

TEST_F(SlotsPathTest, BlocksAreThereWhenTheOperationEnds) {
  for (const OpKind kind : {OpKind::kPut, OpKind::kGet}) {
    prepare(kind);
    const Bytes untouched(remote_.begin() + 400, remote_.begin() + 600);
    EXPECT_TRUE(initiator_.path.push(operation_));
    work();
    EXPECT_TRUE(initiator_.ends.empty()) << "nobody has claimed it";
    EXPECT_TRUE(is_ok(arrive()));
    work();
    EXPECT_TRUE(initiator_.ended_with(OH_OK));
    EXPECT_TRUE(are_equal(operation_));
    EXPECT_TRUE(std::equal(untouched.begin(), untouched.end(), remote_.begin() + 400));
    EXPECT_EQ(operation_.taken, OH_PATH_LOCAL);
    initiator_.ends.clear();
    std::ranges::copy(Random(3).bytes(remote_.size()), remote_.begin());
  }
}

// An operation may use a part of the slots; it continues as its blocks end.
TEST_F(SlotsPathTest, ManyBlocksGoInTurns) {
  prepare_many(200);
  EXPECT_FALSE(initiator_.path.push(operation_));
  EXPECT_LT(initiator_.frames().size(), 200u);
  for (int turn = 0; turn < 200 && !initiator_.path.push(operation_); ++turn) {
    EXPECT_TRUE(is_ok(arrive()));
    work();
  }
  EXPECT_TRUE(is_ok(arrive()));
  work();
  EXPECT_TRUE(initiator_.ended_with(OH_OK));
  EXPECT_TRUE(are_equal(operation_));
}

// A host endpoint ends its link while the engine of the peer copies into its memory, and while the
// peer copies between host buffers.
class LinkThatEnds : public SlotsPathTest {
 protected:
  void SetUp() override {
    Transfers& transfers = target_.transfers;
    for (const bool device : {false, true}) {
      Request& request = requests_[device];
      request.kind = OpKind::kSend;
      request.internal = true;
      request.owner = &owner_;
      request.data = remote_.data() + (device ? kDeviceAt : 0);
      request.size = kBytes;
      Transfer* transfer = made_[device] = transfers.offer(&request, /*source=*/true);
      TransferSlot& slot = *transfer->slot;
      slot.claimer_length = request.size;
      slot.claimer_memory = device ? kSlotDevice : 0u;
      if (device) slot.mode = static_cast<uint32_t>(CopyMode::kEngineOfClaimer);
      ASSERT_TRUE(slot_advance(slot, transfer->sequence, SlotState::kPosted, SlotState::kClaimed));
      ASSERT_TRUE(transfers.claimed(transfer));
      transfer->learn();
      uint64_t offset;
      uint64_t size;
      ASSERT_EQ(transfer->take_chunks(/*from_back=*/false, 1, &offset, &size), 1u);
    }
    made_[0]->import = std::make_shared<ImportedBlock>();
  }
  void TearDown() override {}
  bool end() {
    const Status status = error(OH_ERR_CLOSED, "closed here");
    return target_.transfers.fail_all(status, /*peer_is_dead=*/false);
  }

  static constexpr size_t kBytes = 100;
  static constexpr size_t kDeviceAt = 500;
  struct Owner final : PieceOwner {
    void piece_ended(Request*) override {}
  } owner_;
  Request requests_[2];
  Transfer* made_[2] = {};
};

TEST_F(LinkThatEnds, MemoryIsInUseUntilThePeersEngineIsDone) {
  Transfers& transfers = target_.transfers;
  LinkGuard guard(target_.link);
  EXPECT_TRUE(end());
  EXPECT_TRUE(transfers.engine_within(remote_.data() + kDeviceAt, kBytes));
  EXPECT_FALSE(transfers.engine_within(remote_.data(), kBytes));
  EXPECT_TRUE(transfers.left_to_engines());
  for (Transfer* each : made_) each->account(1);
  EXPECT_TRUE(transfers.settle_rest());
  EXPECT_FALSE(transfers.engine_within(remote_.data() + kDeviceAt, kBytes));
  EXPECT_FALSE(transfers.in_use());
}

// Its own engine, of which it has none, holds no mapping.
TEST_F(LinkThatEnds, AHostEndpointLeavesTheRest) {
  LinkGuard guard(target_.link);
  EXPECT_TRUE(end());
  target_.transfers.leave_rest();
  EXPECT_TRUE(target_.transfers.left_to_engines());
  // Nobody settles it any more, whoever's engine it is.
  made_[1]->engine_copies = true;
  EXPECT_TRUE(target_.transfers.left_to_engines());
  made_[1]->account(1);
  EXPECT_FALSE(target_.transfers.left_to_engines());
}

// A slot is freed if the channel has no room for its frame.
TEST_F(SlotsPathTest, AFullChannelIsTriedAgain) {
  prepare(OpKind::kPut);
  initiator_.fakes.channel->room = false;
  for (uint32_t i = 0; i <= kSlots; ++i) EXPECT_FALSE(initiator_.path.push(operation_));
  EXPECT_FALSE(initiator_.transfers.in_use());
  initiator_.fakes.channel->room = true;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  work();
  EXPECT_TRUE(are_equal(operation_));
}

// The operation waits for the block, and gives its request to no other block meanwhile.
TEST_F(SlotsPathTest, ABlockThatAFaultyPeerClaimsBeforeItsFrameIsUnderWay) {
  unit::prepare(operation_, OpKind::kPut, *region_, {{local_.data(), 100, 300}});
  initiator_.fakes.channel->room = false;
  initiator_.fakes.channel->when_full = [&](const Frame& frame) {
    EXPECT_TRUE(is_ok(target_.path.on_frame(frame)));
  };
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_EQ(operation_.under_way.size(), 1u);
  work();
  EXPECT_TRUE(initiator_.ended_with(OH_OK));
  EXPECT_TRUE(are_equal(operation_));
}

TEST_F(SlotsPathTest, WhatIsOutsideOfTheRegionIsRefused) {
  const Bytes before = remote_;
  unit::prepare(operation_, OpKind::kPut, *region_, {{local_.data(), 900, 101}});
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  work();
  ASSERT_TRUE(initiator_.ended_with(OH_ERR_RANGE));
  EXPECT_TRUE(fails_with(initiator_.ends[0], OH_ERR_RANGE, "transfer of 101 bytes"));
  EXPECT_EQ(remote_, before);
}

TEST_F(SlotsPathTest, ARetiredRegionIsRefused) {
  prepare(OpKind::kPut);
  const Bytes before = remote_;
  EXPECT_TRUE(initiator_.path.push(operation_));
  target_.regions.retire(*region_);
  EXPECT_TRUE(is_ok(arrive()));
  work();
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_RETIRED));
  EXPECT_EQ(remote_, before);
}

TEST_F(SlotsPathTest, AReadOnlyRegionIsReadAndNotWritten) {
  region_ = *target_.regions.add(remote_.data(), remote_.size(), nullptr, RegionAccess::kReadOnly);
  prepare(OpKind::kPut);
  const Bytes before = remote_;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  work();
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_READ_ONLY));
  EXPECT_EQ(remote_, before);
  initiator_.ends.clear();
  begin(OpKind::kGet);
  work();
  EXPECT_TRUE(initiator_.ended_with(OH_OK));
  EXPECT_TRUE(are_equal(operation_));
}

// Blocks that were claimed before the region was retired still end; then the region is unused.
TEST_F(SlotsPathTest, ARegionIsLeftOnceItsBlocksHaveEnded) {
  begin(OpKind::kPut);
  target_.regions.retire(*region_);
  {
    LinkGuard guard(target_.link);
    EXPECT_TRUE(target_.path.leave(*region_));
  }
  work();
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_RETIRED));
}

TEST_F(SlotsPathTest, FramesOfNoCorrectPeerBreakTheProtocol) {
  Frame frame;
  frame.type = FrameType::kPut;
  frame.flags = kBySlot;
  frame.slot = kSlots;
  EXPECT_TRUE(fails_with(target_.path.on_frame(frame), OH_ERR_PROTOCOL));
}

// The offer is unclaimed: it is withdrawn, and a late frame has no effect.
TEST_F(SlotsPathTest, AnOfferIsCancelled) {
  prepare(OpKind::kPut);
  const Bytes before = remote_;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_FALSE(initiator_.path.has_begun(operation_));
  EXPECT_TRUE(initiator_.path.cancel(operation_, error(OH_ERR_TIMEOUT, "late"), false));
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_TIMEOUT));
  EXPECT_TRUE(is_ok(arrive()));
  work();
  EXPECT_EQ(remote_, before);
}

// The target has claimed it, but has not copied yet: both sides end it.
TEST_F(SlotsPathTest, AClaimedBlockIsAbandoned) {
  begin(OpKind::kPut);
  EXPECT_TRUE(initiator_.path.has_begun(operation_));
  EXPECT_TRUE(initiator_.path.cancel(operation_, error(OH_ERR_TIMEOUT, "late"), false));
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_TIMEOUT));
}

// The target holds a chunk that it does not finish: with give_up the buffer is in doubt.
TEST_F(SlotsPathTest, ABlockThatTheTargetCopiesIsGivenUpInDoubt) {
  prepare(OpKind::kPut);
  Request request;
  request.kind = OpKind::kPut;
  operation_.request = &request;
  EXPECT_TRUE(initiator_.path.push(operation_));
  EXPECT_TRUE(is_ok(arrive()));
  // As a thread of the target that takes the only chunk of each block, and stops.
  std::vector<TransferSlot*> slots;
  for (Request* piece : operation_.under_way) {
    slots.push_back(piece->transfer->slot);
    slots.back()->cursor.store(1);
  }
  const Status late = error(OH_ERR_TIMEOUT, "late");
  EXPECT_FALSE(initiator_.path.cancel(operation_, late, /*give_up=*/false));
  EXPECT_TRUE(initiator_.ends.empty());
  EXPECT_TRUE(initiator_.path.cancel(operation_, late, /*give_up=*/true));
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_IN_DOUBT));
  EXPECT_EQ(request.doubts.size(), 2u);
  EXPECT_FALSE(initiator_.transfers.released(request.doubts));
  for (TransferSlot* slot : slots) {
    EXPECT_TRUE(slot_advance(*slot, slot_sequence(slot->word.load()), SlotState::kClaimed,
                             SlotState::kDone, OH_ERR_TIMEOUT));
  }
  EXPECT_TRUE(initiator_.transfers.released(request.doubts));
}

TEST_F(SlotsPathTest, TheEndOfTheLinkEndsTheOperation) {
  prepare(OpKind::kPut);
  EXPECT_TRUE(initiator_.path.push(operation_));
  const Status gone = error(OH_ERR_PEER_LOST, "gone");
  EXPECT_TRUE(initiator_.transfers.fail_all(gone, /*peer_is_dead=*/false));
  initiator_.path.fail(operation_, gone);
  EXPECT_TRUE(initiator_.ended_with(OH_ERR_PEER_LOST));
}

}  // namespace
}  // namespace unit::slots_path_test
