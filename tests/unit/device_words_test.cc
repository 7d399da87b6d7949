// SPDX-License-Identifier: Apache-2.0
#include "onehop/detail/word.h"

#include <set>

#include "unit/device_protocol.h"

namespace device_words_test {
namespace {

using namespace unit;

constexpr uint64_t kMostCount = (uint64_t{1} << 56) - 1;

TEST(DeviceWordsTest, AnEpochIsNeverZeroAndAllComeInTurn) {
  std::set<uint8_t> seen;
  uint8_t epoch = 1;
  for (int i = 0; i < 255; ++i) {
    EXPECT_NE(epoch, 0);
    EXPECT_TRUE(seen.insert(epoch).second);
    epoch = next_epoch(epoch);
  }
  EXPECT_EQ(epoch, 1);
}

TEST(DeviceWordsTest, AWordHoldsItsCountForItsEpochOnly) {
  for (uint8_t epoch : kEpochs) {
    for (uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, kMostCount}) {
      uint64_t word = make_word(epoch, count);
      EXPECT_EQ(count_of(word, epoch), count);
      EXPECT_EQ(count_of(word, next_epoch(epoch)), 0u);
    }
    EXPECT_EQ(count_of(0, epoch), 0u);
    EXPECT_EQ(make_word(epoch, kMostCount + 8), make_word(epoch, 7));
  }
}

TEST(DeviceWordsTest, AFlagDiffersFromThatOfTheLapBeforeAndOfOtherEpochs) {
  for (uint32_t shift : {0u, 1u, 6u, 20u}) {
    for (uint64_t position : first_positions(shift)) {
      for (uint8_t epoch : kEpochs) {
        uint32_t flag = flag_at(epoch, shift, position);
        EXPECT_NE(flag, 0u);
        EXPECT_EQ(flag >> 24, epoch);
        EXPECT_NE(flag, flag_at(epoch, shift, position + (uint64_t{1} << shift)));
        EXPECT_NE(flag, flag_at(next_epoch(epoch), shift, position));
        EXPECT_EQ(place_of(shift, position), place_of(shift, position + (uint64_t{1} << shift)));
        EXPECT_LT(place_of(shift, position), uint64_t{1} << shift);
      }
    }
  }
  EXPECT_EQ(flag_at(9, 3, uint64_t{1} << 27), flag_at(9, 3, 0)) << "laps wrap after 2^24";
}

TEST(DeviceWordsTest, WhatFitsIsWhatTheOtherSideIsThroughWith) {
  for (uint64_t through : {uint64_t{0}, uint64_t{5}, uint64_t{1} << 40}) {
    EXPECT_TRUE(fits(3, through, 8, through));
    EXPECT_FALSE(fits(3, through, 9, through));
    EXPECT_TRUE(fits(3, through + 7, 1, through));
    EXPECT_FALSE(fits(3, through + 8, 1, through));
    EXPECT_TRUE(fits(3, through + 8, 0, through));
    EXPECT_FALSE(fits(3, through + 100, 1, through));
    EXPECT_FALSE(fits(3, through, 1, through + 1)) << "ahead of us: it is not believed";
  }
  EXPECT_FALSE(fits(3, 0, 1, kMostCount));
}

// A late store of an earlier epoch overwrites the word, but never looks valid.
TEST(DeviceWordsTest, ALateStoreOfAnEarlierEpochIsNothing) {
  for (uint8_t epoch : kEpochs) {
    uint64_t word = 0;
    publish<Delayed>(&word, epoch, 41);
    EXPECT_EQ(poll<Delayed>(&word, epoch), 41u);
    uint8_t next = next_epoch(epoch);
    EXPECT_EQ(poll<Delayed>(&word, next), 0u);
    publish<Delayed>(&word, next, 3);
    EXPECT_EQ(poll<Delayed>(&word, next), 3u);
    publish<Delayed>(&word, epoch, 42);
    EXPECT_EQ(poll<Delayed>(&word, next), 0u);
    publish<Delayed>(&word, next, 4);
    EXPECT_EQ(poll<Delayed>(&word, next), 4u);
  }
}

// Two threads pass one plain buffer back and forth: the stores before a count are visible with it.
TEST(DeviceWordsTest, WhatCameBeforeACountIsThereWithIt) {
  constexpr uint64_t kRounds = 3000;
  constexpr uint64_t kSize = 8;
  uint64_t buffer[kSize] = {};
  alignas(64) uint64_t full = 0;
  alignas(64) uint64_t empty = 0;
  uint64_t wrong = 0;
  Threads threads;
  threads.start([&] {
    uint8_t epoch = 250;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      if (round % 100 == 0) epoch = next_epoch(epoch);
      wait_until([&] { return poll<Delayed>(&full, epoch) == round; });
      for (uint64_t i = 0; i < kSize; ++i) wrong += buffer[i] != round * kSize + i;
      publish<Delayed>(&empty, epoch, round);
    }
  });
  uint8_t epoch = 250;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    if (round % 100 == 0) epoch = next_epoch(epoch);
    for (uint64_t i = 0; i < kSize; ++i) buffer[i] = round * kSize + i;
    publish<Delayed>(&full, epoch, round);
    wait_until([&] { return poll<Delayed>(&empty, epoch) == round; });
  }
  threads.join();
  EXPECT_EQ(wrong, 0u);
}

// The same with one fence and two words, whichever is read.
TEST(DeviceWordsTest, AFenceOrdersForBothWordsBehindIt) {
  constexpr uint64_t kRounds = 2000;
  uint64_t buffer = 0;
  alignas(64) uint64_t words[2] = {};
  alignas(64) uint64_t empty = 0;
  uint64_t wrong = 0;
  Threads threads;
  threads.start([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      wait_until([&] { return Delayed::load_acquire(&words[round % 2]) == round; });
      wrong += buffer != round;
      Delayed::store_release(&empty, round);
    }
  });
  for (uint64_t round = 1; round <= kRounds; ++round) {
    buffer = round;
    Delayed::fence();
    Delayed::store_behind_fence(&words[0], round);
    Delayed::store_behind_fence(&words[1], round);
    wait_until([&] { return Delayed::load_acquire(&empty) == round; });
  }
  threads.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace device_words_test
