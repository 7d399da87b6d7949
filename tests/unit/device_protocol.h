// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of include/onehop/detail: memory accesses with random delays in between, and
// waits that yield the processor.
#pragma once

#include <atomic>
#include <thread>

#include "onehop/detail/command.h"
#include "onehop/detail/cursor.h"
#include "onehop/detail/host_atomics.h"
#include "onehop/detail/word.h"
#include "unit/support.h"

namespace unit {

using namespace onehop::detail;

// Most accesses follow at once, some after a delay, a few after a yield.
struct RandomDelay {
  static Random& random() {
    static std::atomic<uint64_t> threads{0};
    thread_local Random numbers(threads.fetch_add(1) * 7919 + 1);
    return numbers;
  }
  void operator()() const {
    uint64_t dice = random().below(64);
    if (dice == 0) std::this_thread::yield();
    if (dice >= 8) return;
    for (uint64_t i = random().below(200); i > 0; --i) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  }
};

using Delayed = BasicHostAtomics<RandomDelay>;

// Returns when the condition holds; main.cc ends a test that hangs.
template <typename Condition>
void wait_until(Condition condition) {
  while (!condition()) std::this_thread::yield();
}

// A wait policy without a limit.
struct NeverGiveUp {
  bool over() {
    std::this_thread::yield();
    return false;
  }
};

// An epoch from the middle of the range, and those around its wrap.
inline constexpr uint8_t kEpochs[] = {1, 100, 254, 255};

// Positions shortly before and after the wrap of a ring's lap counter.
inline std::vector<uint64_t> first_positions(uint32_t shift) {
  uint64_t wrap = uint64_t{1} << 24 << shift;
  return {0, wrap - (uint64_t{1} << shift), wrap - 1, wrap, 3 * wrap - 5};
}

}  // namespace unit
