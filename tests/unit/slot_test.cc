// SPDX-License-Identifier: Apache-2.0
#include "transport/slot.h"

#include <vector>

#include "unit/support.h"

namespace slot_test {
namespace {

using namespace oh;

constexpr SlotState kStates[] = {SlotState::kFree, SlotState::kPosted, SlotState::kClaimed,
                                 SlotState::kDone, SlotState::kCancelled};

TEST(SlotTest, TheWordHoldsSequenceStateAndStatus) {
  for (uint32_t sequence : {0u, 1u, 0x7fffffffu, UINT32_MAX}) {
    for (SlotState state : kStates) {
      for (oh_status status : {OH_OK, OH_ERR_TRUNCATED, OH_ERR_FAULT, OH_ERR_NO_CRYPTO}) {
        uint64_t word = slot_word(sequence, state, status);
        EXPECT_EQ(slot_sequence(word), sequence);
        EXPECT_EQ(slot_state(word), state);
        EXPECT_EQ(slot_status(word), status);
      }
    }
  }
}

// The complete table of transitions.
TEST(SlotTest, EveryTransitionIsAllowedOrRefused) {
  auto allowed = [](SlotState from, SlotState to) {
    return (from == SlotState::kFree && to == SlotState::kPosted) ||
           (from == SlotState::kPosted && to == SlotState::kClaimed) ||
           (from == SlotState::kPosted && to == SlotState::kCancelled) ||
           (from == SlotState::kClaimed && to == SlotState::kDone) ||
           (from == SlotState::kDone && to == SlotState::kFree) ||
           (from == SlotState::kCancelled && to == SlotState::kFree);
  };
  for (SlotState from : kStates) {
    for (SlotState to : kStates) {
      TransferSlot slot{};
      slot.word.store(slot_word(7, from));
      EXPECT_EQ(slot_advance(slot, 7, from, to), allowed(from, to))
          << static_cast<int>(from) << " to " << static_cast<int>(to);
      EXPECT_EQ(slot_state(slot.word.load()), allowed(from, to) ? to : from);
      EXPECT_EQ(slot_sequence(slot.word.load()), 7u);
    }
  }
  EXPECT_FALSE(slot_may_advance(static_cast<SlotState>(99), SlotState::kFree));
}

TEST(SlotTest, AStaleSequenceOrAnotherStateFails) {
  TransferSlot slot{};
  slot.word.store(slot_word(8, SlotState::kPosted));
  EXPECT_FALSE(slot_advance(slot, 7, SlotState::kPosted, SlotState::kClaimed));
  EXPECT_FALSE(slot_advance(slot, 9, SlotState::kPosted, SlotState::kClaimed));
  EXPECT_FALSE(slot_advance(slot, 8, SlotState::kClaimed, SlotState::kDone));
  EXPECT_EQ(slot.word.load(), slot_word(8, SlotState::kPosted));
  EXPECT_TRUE(slot_advance(slot, 8, SlotState::kPosted, SlotState::kClaimed));
  EXPECT_FALSE(slot_advance(slot, 8, SlotState::kPosted, SlotState::kCancelled));
  EXPECT_TRUE(slot_advance(slot, 8, SlotState::kClaimed, SlotState::kDone, OH_ERR_FAULT));
  EXPECT_EQ(slot_status(slot.word.load()), OH_ERR_FAULT);
  EXPECT_FALSE(slot_advance(slot, 8, SlotState::kClaimed, SlotState::kDone));
}

// As a stream compares the word: greater or equal, cyclic.
bool passes(uint64_t word, uint32_t sequence) {
  return static_cast<int64_t>(word - slot_passes(sequence)) >= 0;
}

TEST(SlotTest, StreamsPassTheEndAndAllThatFollows) {
  for (uint32_t sequence : {1u, 7u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    EXPECT_FALSE(passes(slot_word(sequence - 1, SlotState::kDone, OH_ERR_FAULT), sequence));
    EXPECT_FALSE(passes(slot_word(sequence - 1, SlotState::kCancelled), sequence));
    EXPECT_FALSE(passes(slot_word(sequence, SlotState::kPosted), sequence));
    EXPECT_FALSE(passes(slot_word(sequence, SlotState::kClaimed), sequence));
    EXPECT_TRUE(passes(slot_word(sequence, SlotState::kDone), sequence));
    EXPECT_TRUE(passes(slot_word(sequence, SlotState::kDone) | kSlotByWorker, sequence));
    EXPECT_TRUE(passes(slot_word(sequence, SlotState::kDone, OH_ERR_FAULT), sequence));
    for (uint32_t more : {1u, 2u, 0x7ffffffeu}) {
      for (SlotState state : {SlotState::kPosted, SlotState::kClaimed, SlotState::kDone}) {
        EXPECT_TRUE(passes(slot_word(sequence + more, state), sequence)) << sequence << more;
      }
    }
  }
}

TEST(SlotTest, OneThatIsLeftLetsStreamsPassAndNothingElse) {
  TransferSlot slot{};
  for (SlotState state : {SlotState::kPosted, SlotState::kDone, SlotState::kCancelled}) {
    slot.word.store(slot_word(7, state));
    slot_leave(slot, 7);
    EXPECT_EQ(slot.word.load(), slot_word(7, state));
  }
  slot.word.store(slot_word(8, SlotState::kClaimed));
  slot_leave(slot, 7);
  EXPECT_EQ(slot.word.load(), slot_word(8, SlotState::kClaimed));
  slot_leave(slot, 8);
  EXPECT_TRUE(passes(slot.word.load(), 8));
  EXPECT_EQ(slot_state(slot.word.load()), SlotState::kClaimed);
  EXPECT_EQ(slot_status(slot.word.load()), OH_OK);
  slot_leave(slot, 8);
  EXPECT_FALSE(slot_advance(slot, 8, SlotState::kPosted, SlotState::kClaimed));
  EXPECT_TRUE(slot_advance(slot, 8, SlotState::kClaimed, SlotState::kDone, OH_ERR_FAULT));
  EXPECT_EQ(slot.word.load(), slot_word(8, SlotState::kDone, OH_ERR_FAULT));
}

TEST(SlotTest, ChunksCoverEveryLength) {
  for (uint64_t length : {uint64_t{1}, uint64_t{4095}, uint64_t{32 * 1024}, uint64_t{32 * 1024 + 1},
                          uint64_t{64 * 1024}, uint64_t{65 * 1024 + 3}, uint64_t{512 * 1024},
                          uint64_t{512 * 1024 + 1}, uint64_t{1} << 32, uint64_t{1} << 40}) {
    uint64_t chunk = slot_chunk(length);
    uint64_t chunks = (length + chunk - 1) / chunk;
    EXPECT_GE(chunk, 32u * 1024);
    EXPECT_LE(chunk, 256u * 1024);
    EXPECT_EQ(chunk % 4096, 0u);
    EXPECT_GE(chunk * chunks, length);
    EXPECT_LT(chunk * (chunks - 1), length);
  }
  EXPECT_EQ(slot_chunk(64 * 1024), 32u * 1024) << "each side copies one";
}

// The owner cancels while the peer claims: exactly one of them wins, and the claimer's fields are
// visible when the owner sees the claim.
TEST(SlotTest, ACancelAndAClaimNeverBothWin) {
  constexpr uint32_t kRounds = 20000;
  TransferSlot slot{};
  std::atomic<uint32_t> round{0};
  std::atomic<uint32_t> answered{0};
  std::atomic<uint32_t> claims{0};
  std::vector<uint8_t> claimed(kRounds + 1, 0);
  unit::Threads threads;
  threads.start([&] {
    for (uint32_t sequence = 1; sequence <= kRounds; ++sequence) {
      while (round.load(std::memory_order_acquire) < sequence) std::this_thread::yield();
      slot.claimer_address = sequence;
      if (slot_advance(slot, sequence, SlotState::kPosted, SlotState::kClaimed)) {
        claimed[sequence] = 1;
        claims.fetch_add(1);
        EXPECT_TRUE(slot_advance(slot, sequence, SlotState::kClaimed, SlotState::kDone));
      }
      answered.store(sequence, std::memory_order_release);
    }
  });
  uint32_t cancels = 0;
  for (uint32_t sequence = 1; sequence <= kRounds; ++sequence) {
    slot.word.store(slot_word(sequence, SlotState::kPosted));
    round.store(sequence, std::memory_order_release);
    for (uint32_t i = sequence % 64; i-- > 0;) std::atomic_signal_fence(std::memory_order_seq_cst);
    if (slot_advance(slot, sequence, SlotState::kPosted, SlotState::kCancelled)) {
      ++cancels;
      while (answered.load(std::memory_order_acquire) < sequence) std::this_thread::yield();
      ASSERT_EQ(claimed[sequence], 0);
    } else {
      ASSERT_NE(slot_state(slot.word.load()), SlotState::kPosted);
      ASSERT_EQ(slot.claimer_address, sequence);
      while (answered.load(std::memory_order_acquire) < sequence) std::this_thread::yield();
      ASSERT_EQ(claimed[sequence], 1);
      ASSERT_EQ(slot_state(slot.word.load()), SlotState::kDone);
    }
  }
  threads.join();
  EXPECT_EQ(cancels + claims.load(), kRounds);
}

}  // namespace
}  // namespace slot_test
