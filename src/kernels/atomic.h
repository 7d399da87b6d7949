// SPDX-License-Identifier: Apache-2.0
//
// One atomic operation on 8 bytes of a peer's device memory. One thread carries it out, on a device
// or in the fake driver.
#pragma once

#include <cstdint>

#include "onehop/detail/word.h"

namespace oh::kernels {

inline constexpr char kAtomicKernel[] = "onehop_atomic";

// As AtomicOp::Kind.
enum class AtomicKind : uint32_t { kAdd = 1, kCompareSwap = 2 };

struct AtomicArgs {
  uint64_t word;  // device address; 0: no operation
  uint64_t value;
  uint64_t expected;  // of kCompareSwap
  uint64_t before;    // device address for the previous value; 0: none
  AtomicKind kind;
  uint32_t reserved;
};

template <typename A>
ONEHOP_PROTOCOL void run_atomic(const AtomicArgs& args) {
  if (args.word == 0) return;
  uint64_t* word = reinterpret_cast<uint64_t*>(args.word);
  const uint64_t had = args.kind == AtomicKind::kAdd
                           ? A::fetch_add_system(word, args.value)
                           : A::compare_swap_system(word, args.expected, args.value);
  if (args.before != 0) A::store_relaxed(reinterpret_cast<uint64_t*>(args.before), had);
}

}  // namespace oh::kernels
