// SPDX-License-Identifier: Apache-2.0
//
// The pipe between two host buffers: both sides in one process, over one segment.
#include "path/direct/pipe.h"

#include "unit/fake_link.h"
#include "unit/support.h"

namespace pipe_test {
namespace {

using namespace oh;

constexpr uint64_t kLength = 10 * kPipeChunk + 7;
constexpr uint32_t kSlot = 5;

// One side of a relayed transfer.
struct Half final : SpanSinks {
  Half(std::unique_ptr<Segment> segment, bool source) {
    segment->take_side(source ? 0 : 1, /*loopback=*/false);
    SegmentDirection& half = source ? segment->outgoing() : segment->incoming();
    transfer.slot = &half.slots[kSlot];
    link.segment = std::move(segment);
    transfer.index = kSlot;
    transfer.sequence = 1;
    transfer.owner = transfer.source = source;
    transfer.local = bytes.data();
    transfer.length = kLength;
    transfer.chunk = kPipeChunk;
    transfer.mode = CopyMode::kRelay;
  }
  Transfer* sink_of(const PipeSpan& span) override {
    return wanted && span.slot == kSlot && span.sequence == 1 ? &transfer : nullptr;
  }
  bool fill() OH_NO_THREAD_ANALYSIS {
    LinkGuard guard(link);
    return pipe.fill(transfer);
  }
  bool drain() OH_NO_THREAD_ANALYSIS {
    LinkGuard guard(link);
    return pipe.drain();
  }

  unit::FakeLink fake;
  Link& link = fake.link;
  Pipe pipe{link, *this};
  std::vector<uint8_t> bytes = std::vector<uint8_t>(kLength);
  Transfer transfer;
  bool wanted = true;
};

class PipeTest : public ::testing::Test {
 protected:
  PipeTest() : PipeTest(std::move(*Segment::create(/*shared=*/false))) {}

  SlotState state() { return slot_state(source_.transfer.slot->word.load()); }

  Half source_;
  Half sink_;

 private:
  explicit PipeTest(std::unique_ptr<Segment> segment)
      : source_(Segment::alias(*segment), true), sink_(std::move(segment), false) {
    source_.transfer.slot->word.store(slot_word(1, SlotState::kClaimed));
    for (uint64_t i = 0; i < kLength; ++i) source_.bytes[i] = static_cast<uint8_t>(i * 7 + i / 251);
  }
};

TEST_F(PipeTest, AllBytesComeAndTheLastChunkEndsTheTransfer) {
  while (state() != SlotState::kDone) {
    const bool filled = source_.fill();
    const bool drained = sink_.drain();
    ASSERT_TRUE(filled || drained);
  }
  EXPECT_EQ(slot_status(source_.transfer.slot->word.load()), OH_OK);
  EXPECT_EQ(sink_.bytes, source_.bytes);
  EXPECT_FALSE(source_.fill());
  EXPECT_FALSE(sink_.drain());
}

TEST_F(PipeTest, ASourceWaitsForFreeLines) {
  for (uint32_t line = 0; line < kPipeLines; ++line) EXPECT_TRUE(source_.fill());
  EXPECT_FALSE(source_.fill());
  EXPECT_TRUE(sink_.drain());
  EXPECT_TRUE(source_.fill());
  EXPECT_FALSE(source_.fill());
}

// The lines of a transfer that has ended at the sink become free.
TEST_F(PipeTest, SpansThatNobodyWantsAreDropped) {
  sink_.wanted = false;
  EXPECT_TRUE(source_.fill());
  EXPECT_TRUE(sink_.drain());
  EXPECT_EQ(sink_.bytes, std::vector<uint8_t>(kLength));
  EXPECT_EQ(state(), SlotState::kClaimed);
  EXPECT_EQ(source_.transfer.slot->copied.load(), 0u);
}

TEST_F(PipeTest, AStoppedTransferIsFilledNoMore) {
  EXPECT_TRUE(source_.fill());
  sink_.transfer.stop(OH_ERR_CANCELLED);
  EXPECT_FALSE(source_.fill());
  EXPECT_EQ(state(), SlotState::kClaimed);
  EXPECT_TRUE(sink_.drain());  // lines in flight
  EXPECT_EQ(slot_status(sink_.transfer.slot->word.load()), OH_ERR_CANCELLED);
  EXPECT_EQ(state(), SlotState::kDone);
}

}  // namespace
}  // namespace pipe_test
