// SPDX-License-Identifier: Apache-2.0
//
// How host threads access memory that they share with kernels or with each other.
//
// Between runs before every access; tests insert delays there. Two accesses of 8 bytes stand for
// one of 16, in the order on which the protocol relies, so that ThreadSanitizer sees each of them.
//
// Threading: any thread. Memory must be aligned to the size of the access.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>

#include "onehop/detail/word.h"

namespace onehop::detail {

struct Nothing {
  void operator()() const {}
};

template <typename Between>
struct BasicHostAtomics {
  static uint64_t load(const uint64_t* from, std::memory_order order) {
    Between{}();
    return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(from)).load(order);
  }
  static void store(uint64_t* to, uint64_t value, std::memory_order order) {
    Between{}();
    std::atomic_ref<uint64_t>(*to).store(value, order);
  }

  static uint64_t load_relaxed(const uint64_t* from) {
    return load(from, std::memory_order_relaxed);
  }
  static uint64_t load_acquire(const uint64_t* from) {
    return load(from, std::memory_order_acquire);
  }
  static void store_relaxed(uint64_t* to, uint64_t value) {
    store(to, value, std::memory_order_relaxed);
  }
  static void store_release(uint64_t* to, uint64_t value) {
    store(to, value, std::memory_order_release);
  }

  // Orders all earlier accesses before each later store_behind_fence(). ThreadSanitizer does not
  // see fences, so here each of those stores is a release.
  static void fence() {}
  static void store_behind_fence(uint64_t* to, uint64_t value) { store_release(to, value); }

  static void full_fence() {
#if defined(__SANITIZE_THREAD__)
    // ThreadSanitizer does not see fences. A read-modify-write acts as one on the machines that it
    // supports.
    static std::atomic<uint32_t> word{0};
    word.fetch_add(1, std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }

  // Reads a pair that a writer may replace concurrently. The high half is its key, which is invalid
  // during the update. The result never combines a key with the low half of another key.
  static Pair load_keyed(const Pair* from) {
    while (true) {
      const uint64_t key = load_acquire(&from->high);
      const uint64_t low = load_acquire(&from->low);
      if (load_relaxed(&from->high) == key) return {low, key};
    }
  }
  static void store_keyed(Pair* to, Pair value) {
    constexpr uint64_t kNobody = ~uint64_t{0};
    store_relaxed(&to->high, kNobody);
    store_release(&to->low, value.low);
    store_release(&to->high, value.high);
  }

  static Pair load_line(const Pair* from) { return load_lane(from); }
  static void store_line(Pair* to, Pair value) { store_lane(to, value); }

  static uint64_t fetch_or(uint64_t* word, uint64_t bits) {
    Between{}();
    return std::atomic_ref<uint64_t>(*word).fetch_or(bits, std::memory_order_relaxed);
  }
  static uint64_t fetch_or_acquire(uint64_t* word, uint64_t bits) {
    Between{}();
    return std::atomic_ref<uint64_t>(*word).fetch_or(bits, std::memory_order_acquire);
  }
  static uint64_t fetch_and(uint64_t* word, uint64_t bits) {
    Between{}();
    return std::atomic_ref<uint64_t>(*word).fetch_and(bits, std::memory_order_relaxed);
  }
  static uint64_t fetch_or_ordered(uint64_t* word, uint64_t bits) {
    Between{}();
    return std::atomic_ref<uint64_t>(*word).fetch_or(bits, std::memory_order_acq_rel);
  }
  static uint64_t fetch_and_ordered(uint64_t* word, uint64_t bits) {
    Between{}();
    return std::atomic_ref<uint64_t>(*word).fetch_and(bits, std::memory_order_acq_rel);
  }
  static void add(uint64_t* word, uint64_t more, bool fenced = false) {
    Between{}();
    std::atomic_ref<uint64_t>(*word).fetch_add(
        more, fenced ? std::memory_order_release : std::memory_order_relaxed);
  }
  static uint64_t fetch_add(uint64_t* word, uint64_t more) {
    Between{}();
    return std::atomic_ref<uint64_t>(*word).fetch_add(more, std::memory_order_relaxed);
  }
  static uint64_t fetch_add_ordered(uint64_t* word, uint64_t more) {
    Between{}();
    return std::atomic_ref<uint64_t>(*word).fetch_add(more, std::memory_order_acq_rel);
  }
  static uint64_t compare_swap(uint64_t* word, uint64_t expected, uint64_t value) {
    Between{}();
    std::atomic_ref<uint64_t>(*word).compare_exchange_strong(expected, value,
                                                             std::memory_order_acquire);
    return expected;
  }
  static uint64_t compare_swap_ordered(uint64_t* word, uint64_t expected, uint64_t value) {
    Between{}();
    std::atomic_ref<uint64_t>(*word).compare_exchange_strong(expected, value,
                                                             std::memory_order_acq_rel);
    return expected;
  }
  static void add_remote(uint64_t* word, uint64_t more) {
    Between{}();
    std::atomic_ref<uint64_t>(*word).fetch_add(more, std::memory_order_release);
  }
  static void add_remote_relaxed(uint64_t* word, uint64_t more) {
    Between{}();
    std::atomic_ref<uint64_t>(*word).fetch_add(more, std::memory_order_relaxed);
  }
  static uint64_t fetch_add_system(uint64_t* word, uint64_t more) {
    return fetch_add_ordered(word, more);
  }
  static uint64_t compare_swap_system(uint64_t* word, uint64_t expected, uint64_t value) {
    return compare_swap_ordered(word, expected, value);
  }
  static uint64_t now() {
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  static void pause() { sched_yield(); }

  // A lane: a reader that sees the high half, which holds the flag, also sees the low half.
  static Pair load_lane(const Pair* from) {
    uint64_t high = load_acquire(&from->high);
    return {load_relaxed(&from->low), high};
  }
  static void store_lane(Pair* to, Pair value) {
    store_relaxed(&to->low, value.low);
    store_release(&to->high, value.high);
  }
};

using HostAtomics = BasicHostAtomics<Nothing>;

}  // namespace onehop::detail
