// SPDX-License-Identifier: Apache-2.0
//
// Waiter: how a thread waits. It spins, then yields, then sleeps on the endpoint's doorbell. The
// peer, another thread or the watcher rings when it ends the operation. A device does not ring:
// while a device is to end an operation, sleeps are short.
//
// Threading: one Waiter per wait.
#pragma once

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <atomic>

#include "base/clock.h"
#include "base/sync.h"
#include "memory/control_page.h"
#include "platform/os/os.h"

namespace oh {

// How long the waits of an endpoint spin. If a spin fails and the first yield then ends the wait,
// the spin has occupied the CPU that the peer needed: later waits spin half as long. A wait that
// ends while it spins, or whose first yield finds no other thread, doubles the time again.
class SpinTime {
 public:
  int64_t of(int64_t most) const { return most >> halvings_.load(std::memory_order_relaxed); }
  void shorten() {
    const uint32_t now = halvings_.load(std::memory_order_relaxed);
    if (now < kMostHalvings) halvings_.store(now + 1, std::memory_order_relaxed);
  }
  void lengthen() {
    const uint32_t now = halvings_.load(std::memory_order_relaxed);
    if (now > 0) halvings_.store(now - 1, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kMostHalvings = 6;
  std::atomic<uint32_t> halvings_{0};  // a concurrent change may be lost
};

class Waiter {
 public:
  // `polled`: number of operations of the endpoint whose end rings no doorbell. `most_ns`: the
  // longest spin.
  Waiter(Doorbell& bell, const std::atomic<uint32_t>& polled, SpinTime& spin, int64_t most_ns,
         Deadline deadline)
      : bell_(bell), polled_(polled), spin_(spin), most_ns_(most_ns), deadline_(deadline) {}
  ~Waiter() { learn(); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // While `unseen` is more than 0, other work may arrive that rings no doorbell: sleeps are short.
  void look_often_for(const std::atomic<uint32_t>& unseen) { unseen_ = &unseen; }

  // Called after each poll for the awaited event; `worked`: the poll made progress. `look` must
  // find any work there is (it waits for locks) and returns whether the thread must not sleep.
  // False when the deadline has passed.
  template <typename Look>
  bool pause(bool worked, Look look) {
    if (worked && start_ != 0) {
      learn();
      start_ = 0;
      yields_ = 0;
      slept_ = false;
    }
    if (++rounds_ % kRoundsPerClock != 0) {
      if (!worked && rounds_ > kHotRounds) cpu_relax();
      return true;
    }
    int64_t now = now_ns();
    if (now >= deadline_.at()) {
      start_ = 0;  // a timeout is no sample for SpinTime
      return false;
    }
    if (worked) return true;
    if (start_ == 0) start_ = now;
    int64_t waited = now - start_;
    const int64_t spin_ns = spin_.of(most_ns_);
    if (waited < spin_ns) return true;
    bool polled = polled_.load(std::memory_order_relaxed) > 0;
    if (waited < spin_ns + (polled ? kPollTime : kYieldTime)) {
      yield(now);
    } else if (polled) {
      nap(std::min(
          {deadline_.at() - now, kLongestNap, std::max(kShortestNap, waited / kNapShare)}));
      look();
      slept_ = true;
    } else {
      bell_.sleep(std::min(deadline_.at() - now, longest_sleep(waited)), look);
      slept_ = true;
    }
    rounds_ |= kRoundsPerClock - 1;  // read the clock after the next poll
    return true;
  }

  // Whether to poll all peers now, not only the awaited one.
  bool look_around() const { return rounds_ % kRoundsPerClock == kRoundsPerClock - 1; }

 private:
  // Adjusts the spin time after a wait that has read the clock.
  void learn() {
    if (start_ == 0 || slept_) return;
    if (yields_ == 0 || alone_) {
      spin_.lengthen();
    } else if (yields_ == 1) {
      spin_.shorten();
    }
  }

  void yield(int64_t now) {
    os().yield();
    if (yields_++ == 0) alone_ = now_ns() - now < kMicrosecond;
  }

  // In proportion to the wait, so that an arrival is late by a small part of the idle time before
  // it.
  int64_t longest_sleep(int64_t waited) const {
    if (!unseen_ || unseen_->load(std::memory_order_relaxed) == 0) return kLongestSleep;
    return std::clamp(waited / kDozeShare, kShortestDoze, kLongestDoze);
  }

  // Sleeps without the thread's timer slack, by which the kernel lets sleeps overrun (50 us).
  static void nap(int64_t ns) {
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    timespec time{0, static_cast<long>(ns > 0 ? ns : 0)};
    nanosleep(&time, nullptr);
    if (slack > 0) prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
  }

  static constexpr uint32_t kRoundsPerClock = 8;
  static constexpr uint32_t kHotRounds = 256;
  static constexpr int64_t kYieldTime = 50 * kMicrosecond;
  static constexpr int64_t kPollTime = 200 * kMicrosecond;
  // A nap lasts 1/kNapShare of the wait so far, within these bounds.
  static constexpr int64_t kNapShare = 256;
  static constexpr int64_t kShortestNap = 5 * kMicrosecond;
  static constexpr int64_t kLongestNap = 50 * kMicrosecond;
  static constexpr int64_t kDozeShare = 64;
  static constexpr int64_t kShortestDoze = 20 * kMicrosecond;
  static constexpr int64_t kLongestDoze = kMillisecond;
  // An upper bound only, so that the thread sometimes checks the peer's state.
  static constexpr int64_t kLongestSleep = kSecond;

  Doorbell& bell_;
  const std::atomic<uint32_t>& polled_;
  const std::atomic<uint32_t>* unseen_ = nullptr;
  SpinTime& spin_;
  int64_t most_ns_;
  Deadline deadline_;
  int64_t start_ = 0;
  uint32_t rounds_ = 0;
  uint32_t yields_ = 0;  // since start_
  bool alone_ = false;   // the first yield found no other thread
  bool slept_ = false;   // since start_
};

}  // namespace oh
