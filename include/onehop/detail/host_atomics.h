// SPDX-License-Identifier: Apache-2.0
//
// How host threads access memory that they share with kernels, or with each other.
//
// Between is called between any two accesses: tests put delays there. Two accesses of 8 bytes stand
// for one of 16, in the order that the protocol relies on, so that ThreadSanitizer sees all of it.
//
// Threading: any thread. Memory must be aligned to the size of the access.
#pragma once

#include <atomic>

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

  // Orders what came before against each store_behind_fence() that follows. ThreadSanitizer does
  // not see fences, so here each of those stores is a release itself.
  static void fence() {}
  static void store_behind_fence(uint64_t* to, uint64_t value) { store_release(to, value); }

  // Two halves in no order.
  static Pair load_pair(const Pair* from) {
    uint64_t low = load_relaxed(&from->low);
    return {low, load_relaxed(&from->high)};
  }
  static void store_pair(Pair* to, Pair value) {
    store_relaxed(&to->low, value.low);
    store_relaxed(&to->high, value.high);
  }

  // A lane: whoever sees the high half, which has the flag, sees the low one too.
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
