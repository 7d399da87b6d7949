// SPDX-License-Identifier: Apache-2.0
//
// How long a wait spins: less if the peer seems to need this CPU.
#include "link/waiting.h"

#include <gtest/gtest.h>

namespace waiting_test {
namespace {

using namespace oh;

constexpr int64_t kLong = 64 * kSecond;

// Yields at once, or to a thread that works for two microseconds.
class FakeCpu final : public Os {
 public:
  FakeCpu() { former_ = os_replace(this); }
  ~FakeCpu() override { os_replace(former_); }
  void yield() override {
    const Deadline end = Deadline::after(shared ? 2 * kMicrosecond : 0);
    while (!end.passed()) {
    }
  }
  bool shared = true;

 private:
  Os* former_;
};

class WaitingTest : public ::testing::Test {
 protected:
  // A wait that ends after `looks` polls.
  void wait(int64_t most_ns, int looks) {
    Waiter waiter(bell_, polled_, spin_, most_ns, Deadline::never());
    for (int i = 0; i < looks; ++i) waiter.pause(/*worked=*/false, [] { return true; });
  }
  // It spins for at most a nanosecond: it starts with the eighth poll and yields with the 16th, or
  // at once if that nanosecond is over.
  void end_with_the_first_yield() { wait(1, spin_.of(1) > 0 ? 16 : 8); }

  FakeCpu cpu_;
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
  // A wait too short to spin does not change the estimate.
  wait(kLong, 7);
  EXPECT_EQ(spin_.of(kLong), kLong / 4);
}

TEST_F(WaitingTest, AYieldThatFoundNoOtherThreadLengthensTheNext) {
  for (int i = 0; i < 3; ++i) end_with_the_first_yield();
  cpu_.shared = false;
  // A thread of another program may take the CPU meanwhile.
  for (int i = 0; i < 1000 && spin_.of(kLong) < kLong; ++i) end_with_the_first_yield();
  EXPECT_EQ(spin_.of(kLong), kLong);
}

TEST_F(WaitingTest, ADeadlineTellsNothing) {
  for (int i = 0; i < 2; ++i) end_with_the_first_yield();
  for (int64_t most_ns : {int64_t{4}, kLong}) {
    Waiter waiter(bell_, polled_, spin_, most_ns, Deadline::after(10 * kMicrosecond));
    while (waiter.pause(/*worked=*/false, [] { return true; })) {
    }
  }
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
