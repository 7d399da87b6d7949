// SPDX-License-Identifier: Apache-2.0
//
// How a thread waits: it spins, then yields, then sleeps on the endpoint's doorbell. The peer,
// another thread or the watcher that ends its operation rings. A device does not ring: while it has
// an operation to end, sleeps are short.
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

// How long the waits of an endpoint spin. A wait whose spin was in vain, and that ended with the
// first yield, had the CPU that the other side needed: later waits spin half as long. A wait that
// ends while it spins, or whose first yield found no other thread, lengthens them again.
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
  std::atomic<uint32_t> halvings_{0};  // of two threads that change it, one may be lost
};

class Waiter {
 public:
  // `polled`: operations of the endpoint whose end rings no doorbell. `most_ns`: of one spin.
  Waiter(Doorbell& bell, const std::atomic<uint32_t>& polled, SpinTime& spin, int64_t most_ns,
         Deadline deadline)
      : bell_(bell), polled_(polled), spin_(spin), most_ns_(most_ns), deadline_(deadline) {}
  ~Waiter() { learn(); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // While this is more than 0, something else may come that rings no doorbell.
  void look_often_for(const std::atomic<uint32_t>& unseen) { unseen_ = &unseen; }

  // Once per look for what is waited for; `worked`: the look has moved something on. `look` must
  // find any work there is (it waits for locks) and says whether sleeping would be wrong. False
  // when the deadline has passed.
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
      start_ = 0;  // this tells nothing of the other side
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
    rounds_ |= kRoundsPerClock - 1;  // the clock again after the next look
    return true;
  }

  // Whether it is time to poll all peers, not only what is waited for.
  bool look_around() const { return rounds_ % kRoundsPerClock == kRoundsPerClock - 1; }

 private:
  // Of a wait that has ended, and has looked at the clock.
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

  // In proportion, so that an arrival is late by a small part of the idle time before it.
  int64_t longest_sleep(int64_t waited) const {
    if (!unseen_ || unseen_->load(std::memory_order_relaxed) == 0) return kLongestSleep;
    return std::clamp(waited / kDozeShare, kShortestDoze, kLongestDoze);
  }

  // The kernel lets sleeps overrun by the thread's timer slack, 50 us: not this one.
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
  // A wait ends at most so much later than it could.
  static constexpr int64_t kNapShare = 256;
  static constexpr int64_t kShortestNap = 5 * kMicrosecond;
  static constexpr int64_t kLongestNap = 50 * kMicrosecond;
  static constexpr int64_t kDozeShare = 64;
  static constexpr int64_t kShortestDoze = 20 * kMicrosecond;
  static constexpr int64_t kLongestDoze = kMillisecond;
  // An upper bound only, to look at the other side's state now and then.
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
  bool alone_ = false;   // the first of them found no other thread
  bool slept_ = false;   // since start_
};

}  // namespace oh
