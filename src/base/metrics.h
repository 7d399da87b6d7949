// SPDX-License-Identifier: Apache-2.0
//
// Process-wide metrics and the counter types. Counts per link are in link/stats.h; link/totals.h
// adds them up. docs/metrics.md defines each metric.
//
// Threading: a Tally is written under its owner's lock, the other types by any thread. Any thread
// reads. Every access is relaxed: no other memory is ordered by these numbers.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "onehop/types.h"

namespace oh {

// A counter that one thread at a time changes, by a plain load and store instead of an atomic
// read-modify-write.
class Tally {
 public:
  Tally() = default;
  Tally(const Tally& other) : value_(other) {}
  Tally& operator=(const Tally& other) { return set(other); }
  operator uint64_t() const { return value_.load(std::memory_order_relaxed); }  // NOLINT: a number
  Tally& operator+=(uint64_t more) { return set(*this + more); }
  Tally& operator-=(uint64_t less) { return set(*this - less); }
  Tally& operator++() { return *this += 1; }

 private:
  Tally& set(uint64_t value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  std::atomic<uint64_t> value_{0};
};

// A counter to which any thread adds.
class Counter {
 public:
  void add(uint64_t more = 1) { value_.fetch_add(more, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }
  void reset() { value_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// A gauge.
class Level {
 public:
  void add(uint64_t more) { value_.fetch_add(signed_of(more), std::memory_order_relaxed); }
  void sub(uint64_t less) { value_.fetch_sub(signed_of(less), std::memory_order_relaxed); }
  // Never negative: a child of fork() starts at zero and may release what it inherited.
  uint64_t get() const {
    return static_cast<uint64_t>(std::max<int64_t>(0, value_.load(std::memory_order_relaxed)));
  }
  void reset() { value_.store(0, std::memory_order_relaxed); }

 private:
  static int64_t signed_of(uint64_t value) { return static_cast<int64_t>(value); }
  std::atomic<int64_t> value_{0};
};

// A histogram with power-of-two buckets. Bucket i counts values up to 2^(i + kShift); the last one
// counts the rest.
template <size_t kBounds, int kShift>
class Histogram {
 public:
  static constexpr size_t kBuckets = kBounds + 1;
  static constexpr uint64_t bound(size_t bucket) { return uint64_t{1} << (bucket + kShift); }
  static constexpr size_t bucket_of(uint64_t value) {
    if (value == 0) return 0;
    return std::min<size_t>(std::bit_width((value - 1) >> kShift), kBounds);
  }

  void observe(uint64_t value) {
    buckets_[bucket_of(value)].add();
    sum_.add(value);
  }
  uint64_t bucket(size_t index) const { return buckets_[index].get(); }
  uint64_t sum() const { return sum_.get(); }
  void reset() {
    for (Counter& bucket : buckets_) bucket.reset();
    sum_.reset();
  }

 private:
  std::array<Counter, kBuckets> buckets_;
  Counter sum_;
};

using TimeHistogram = Histogram<25, 10>;  // nanoseconds: 1.024 us to 17.2 s
using BlockHistogram = Histogram<21, 0>;  // 1 to 1,048,576 blocks

// Operations that move bytes: the label "op". Each has one direction.
enum class MetricOp : uint8_t { kSend, kRecv, kPut, kGet };
inline constexpr size_t kMetricOps = 4;
inline constexpr std::array<const char*, kMetricOps> kMetricOpNames = {"send", "recv", "put",
                                                                       "get"};
constexpr bool is_outward(MetricOp op) { return op == MetricOp::kSend || op == MetricOp::kPut; }

// Why a link was lost.
enum class Loss : uint8_t {
  kClosed,    // the peer closed the link
  kDied,      // the peer's process died, or its host does not answer
  kProtocol,  // the peer broke the protocol
  kFailed,    // the transport or a device failed
};
inline constexpr size_t kLosses = 4;
inline constexpr std::array<const char*, kLosses> kLossNames = {"closed", "died", "protocol",
                                                                "failed"};

// Why a link is slower than it could be. The last two count operations.
enum class Fallback : uint8_t {
  kNoSegment,     // one host, but no shared memory
  kNoSingleCopy,  // one host, but no access to the peer's memory: two copies
  kNoUcx,         // two hosts, but no UCX: the control socket
  kNoPeerAccess,  // no peer access between the GPUs: through host memory
  kNoCredit,      // a small message that used rendezvous for lack of credit
  kStreamStaged,  // a large message of a stream or kernel that went through chunks
};
inline constexpr size_t kFallbacks = 6;
inline constexpr std::array<const char*, kFallbacks> kFallbackNames = {
    "no_segment", "no_single_copy", "no_ucx", "no_peer_access", "no_credit", "stream_staged"};

class Metrics {
 public:
  // Only successful operations that were timed: see Link::is_timed().
  using ByPath = std::array<TimeHistogram, OH_PATH_COUNT>;
  std::array<ByPath, kMetricOps> transfer_time;
  std::array<ByPath, kMetricOps> post_time;
  std::array<BlockHistogram, kMetricOps> batch_blocks;
  std::array<Counter, kLosses> losses;
  std::array<Counter, kFallbacks> fallbacks;
  Level registered_bytes;
  Level imported_bytes;

  void count_error(oh_status status) {
    if (status < 0 && static_cast<size_t>(-status) < errors_.size())
      errors_[index_of(status)].add();
  }
  uint64_t errors(oh_status status) const { return errors_[index_of(status)].get(); }
  void count(Loss loss) { losses[static_cast<size_t>(loss)].add(); }
  void count(Fallback fallback) { fallbacks[static_cast<size_t>(fallback)].add(); }
  // Resets all values in a child of fork().
  void reset();

 private:
  static size_t index_of(oh_status status) { return static_cast<size_t>(-status); }
  std::array<Counter, 64> errors_;  // by negated code
};

inline constinit Metrics g_metrics;

}  // namespace oh
