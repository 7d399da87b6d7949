// SPDX-License-Identifier: Apache-2.0
//
// How long a wait spins: less where the other side seems to need this CPU.
#include "link/waiting.h"

#include <gtest/gtest.h>

namespace waiting_test {
namespace {

using namespace oh;

constexpr int64_t kLong = 64 * kSecond;

class WaitingTest : public ::testing::Test {
 protected:
  // A wait that looks so often and then ends.
  void wait(int64_t most_ns, int looks) {
    Waiter waiter(bell_, polled_, spin_, most_ns, Deadline::never());
    for (int i = 0; i < looks; ++i) waiter.pause(/*worked=*/false, [] { return true; });
  }
  // It spins for a nanosecond at most: it starts with the eighth look and yields with the 16th, or
  // at once where nothing is left of that nanosecond.
  void end_with_the_first_yield() { wait(1, spin_.of(1) > 0 ? 16 : 8); }

  Doorbell bell_{};
  std::atomic<uint32_t> polled_{0};
  SpinTime spin_;
};

TEST_F(WaitingTest, WaitsThatEndWithTheFirstYieldSpinLessAndLess) {
  EXPECT_EQ(spin_.of(kLong), kLong);
  end_with_the_first_yield();
  EXPECT_EQ(spin_.of(kLong), kLong / 2);
  for (int i = 0; i < 100; ++i) end_with_the_first_yield();
  EXPECT_EQ(spin_.of(kLong), kLong / 64);
}

TEST_F(WaitingTest, AWaitThatEndsWhileItSpinsLengthensTheNext) {
  for (int i = 0; i < 3; ++i) end_with_the_first_yield();
  EXPECT_EQ(spin_.of(kLong), kLong / 8);
  wait(kLong, 8);
  EXPECT_EQ(spin_.of(kLong), kLong / 4);
  // One that looked too briefly to spin tells nothing.
  wait(kLong, 7);
  EXPECT_EQ(spin_.of(kLong), kLong / 4);
}

TEST_F(WaitingTest, WhatWasMovedOnBehindTheFirstYieldCountsToo) {
  Waiter waiter(bell_, polled_, spin_, 1, Deadline::never());
  for (int i = 0; i < 16; ++i) waiter.pause(/*worked=*/false, [] { return true; });
  EXPECT_EQ(spin_.of(kLong), kLong);
  waiter.pause(/*worked=*/true, [] { return true; });
  EXPECT_EQ(spin_.of(kLong), kLong / 2);
}

TEST_F(WaitingTest, AWaitThatSleptTellsNothing) {
  end_with_the_first_yield();
  const Deadline enough = Deadline::after(100 * kMicrosecond);
  {
    Waiter waiter(bell_, polled_, spin_, 1, Deadline::never());
    bool slept = false;
    while (!slept || !enough.passed()) {
      waiter.pause(/*worked=*/false, [&] { return slept = true; });
    }
  }
  EXPECT_EQ(spin_.of(kLong), kLong / 2);
}

}  // namespace
}  // namespace waiting_test
