// SPDX-License-Identifier: Apache-2.0
//
// How the threads of a block share a copy (onehop/detail/copy.h).
#pragma once

#include "onehop/detail/copy.h"

namespace oh::kernels {

// `of` threads, in whole warps; the calling thread is number `at`.
struct ThreadLanes {
  static constexpr unsigned kAtOnce = 8;
  unsigned at;
  unsigned of;
  __device__ unsigned lane() const { return at; }
  __device__ unsigned count() const { return of; }
  // The next lane of the warp holds the word; the last lane loads it.
  __device__ onehop::detail::Pair next(const onehop::detail::Pair& own,
                                       const onehop::detail::Pair* words, uint64_t i, bool valid,
                                       bool last) const {
    onehop::detail::Pair word;
    word.low = __shfl_down_sync(~0u, own.low, 1);
    word.high = __shfl_down_sync(~0u, own.high, 1);
    if (valid && (last || at % 32 == 31)) word = words[i + 1];
    return word;
  }
};

}  // namespace oh::kernels
