// SPDX-License-Identifier: Apache-2.0
//
// The clock of the timed loops: the processor's time-stamp counter if its rate is invariant,
// otherwise the steady clock. Reading the counter takes a few nanoseconds; reading the system's
// clock takes a quarter of the time of a small message.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace bench {

class Clock {
 public:
  using time_point = uint64_t;

  static time_point now() {
#if defined(__x86_64__)
    if (ticks_per_us_ > 0) return __rdtsc();
#endif
    return steady_ns();
  }
  static double microseconds(time_point from, time_point to) {
    return static_cast<double>(to - from) / (ticks_per_us_ > 0 ? ticks_per_us_ : 1000.0);
  }

 private:
  static uint64_t steady_ns() {
    auto time = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::nanoseconds(time).count());
  }
  // Returns 0 if the counter must not be used.
  static double calibrate() {
#if defined(__x86_64__)
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    constexpr unsigned kInvariant = 1U << 8;
    if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & kInvariant)) return 0;
    constexpr uint64_t kSpan = 20'000'000;
    uint64_t begin = steady_ns();
    uint64_t first = __rdtsc();
    uint64_t end = begin;
    while (end - begin < kSpan) end = steady_ns();
    return static_cast<double>(__rdtsc() - first) * 1000.0 / static_cast<double>(end - begin);
#else
    return 0;
#endif
  }
  static inline const double ticks_per_us_ = calibrate();
};

inline double microseconds(Clock::time_point from, Clock::time_point to) {
  return Clock::microseconds(from, to);
}

}  // namespace bench
