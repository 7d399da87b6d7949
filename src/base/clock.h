// SPDX-License-Identifier: Apache-2.0
//
// Monotonic time and deadlines. All durations are nanoseconds in int64_t.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace oh {

inline constexpr int64_t kMicrosecond = 1000;
inline constexpr int64_t kMillisecond = 1000 * kMicrosecond;
inline constexpr int64_t kSecond = 1000 * kMillisecond;

inline int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

// A point in time at which a wait ends. Another thread can end the wait earlier by setting a cancel
// word. A deadline has at most two: one of the caller, one of the endpoint.
class Deadline {
 public:
  // Longest time until a wait notices that it was cancelled.
  static constexpr int64_t kCancelSlice = 20 * kMillisecond;

  static Deadline never() { return Deadline(std::numeric_limits<int64_t>::max()); }
  static Deadline after(int64_t nanoseconds) {
    if (nanoseconds == std::numeric_limits<int64_t>::max()) return never();
    int64_t now = now_ns();
    return nanoseconds > std::numeric_limits<int64_t>::max() - now
               ? never()
               : Deadline(now + nanoseconds, nanoseconds);
  }
  bool is_never() const { return at_ == std::numeric_limits<int64_t>::max(); }
  bool passed() const { return (!is_never() && now_ns() >= at_) || cancelled(); }
  // Nanoseconds left, never negative; the maximum if there is no deadline. At most kCancelSlice if
  // the wait can be cancelled, so use passed() to test for the end.
  int64_t left() const {
    if (!cancels_[0]) return time_left();
    return cancelled() ? 0 : std::min(time_left(), kCancelSlice);
  }
  int64_t at() const { return at_; }
  // Its length when it was set, for error texts.
  int64_t length() const { return length_; }
  int64_t set_at() const { return at_ - length_; }

  // The same deadline, which also passes once `cancel` is not zero. Null adds nothing. At most two
  // words.
  Deadline unless(const int* cancel) const {
    Deadline other = *this;
    if (cancel) other.cancels_[cancels_[0] ? 1 : 0] = cancel;
    return other;
  }
  // The same deadline, but at most `nanoseconds` from now.
  Deadline within(int64_t nanoseconds) const {
    Deadline other = after(nanoseconds).unless(cancels_[0]).unless(cancels_[1]);
    return other.at_ < at_ ? other : *this;
  }
  bool cancelled() const { return is_set(cancels_[0]) || is_set(cancels_[1]); }

 private:
  explicit Deadline(int64_t at, int64_t length = 0) : at_(at), length_(length) {}
  static bool is_set(const int* word) {
    return word && __atomic_load_n(word, __ATOMIC_ACQUIRE) != 0;
  }
  int64_t time_left() const {
    if (is_never()) return at_;
    int64_t left = at_ - now_ns();
    return left > 0 ? left : 0;
  }
  int64_t at_;
  int64_t length_;
  const int* cancels_[2] = {};  // the second is null where the first is
};

}  // namespace oh
