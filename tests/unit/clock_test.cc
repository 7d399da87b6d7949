// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include "unit/support.h"

namespace clock_test {
namespace {

using namespace oh;

TEST(ClockTest, TimeGoesOn) {
  int64_t before = now_ns();
  EXPECT_TRUE(unit::eventually([&] { return now_ns() > before; }));
}

TEST(ClockTest, ADeadlinePassesAndStaysPassed) {
  Deadline deadline = Deadline::after(kMillisecond);
  EXPECT_FALSE(deadline.is_never());
  EXPECT_TRUE(unit::eventually([&] { return deadline.passed(); }));
  EXPECT_EQ(deadline.left(), 0);
  EXPECT_TRUE(Deadline::after(0).passed());
  EXPECT_EQ(Deadline::after(0).left(), 0);
}

TEST(ClockTest, WhatIsLeftShrinksAndIsNeverNegative) {
  Deadline deadline = Deadline::after(3600 * kSecond);
  int64_t first = deadline.left();
  EXPECT_GT(first, 0);
  EXPECT_LE(first, 3600 * kSecond);
  EXPECT_TRUE(unit::eventually([&] { return deadline.left() < first; }));
  EXPECT_FALSE(deadline.passed());
}

TEST(ClockTest, NeverIsNever) {
  int64_t most = std::numeric_limits<int64_t>::max();
  // Times beyond the clock's range do not wrap around.
  for (Deadline deadline : {Deadline::never(), Deadline::after(most), Deadline::after(most - 1)}) {
    EXPECT_TRUE(deadline.is_never());
    EXPECT_FALSE(deadline.passed());
    EXPECT_EQ(deadline.left(), most);
  }
}

TEST(ClockTest, ItIsOverOnceAnyOfTwoWordsIsSet) {
  for (int which : {0, 1}) {
    int words[2] = {};
    const Deadline deadline =
        Deadline::never().unless(nullptr).unless(&words[0]).unless(&words[1]).unless(nullptr);
    for (const Deadline& each : {deadline, deadline.within(3600 * kSecond)}) {
      EXPECT_FALSE(each.cancelled());
      EXPECT_FALSE(each.passed());
      EXPECT_EQ(each.left(), Deadline::kCancelSlice);
    }
    words[which] = 1;
    for (const Deadline& each : {deadline, deadline.within(3600 * kSecond)}) {
      EXPECT_TRUE(each.cancelled());
      EXPECT_TRUE(each.passed());
      EXPECT_EQ(each.left(), 0);
    }
  }
}

}  // namespace
}  // namespace clock_test
