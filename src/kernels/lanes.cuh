// SPDX-License-Identifier: Apache-2.0
//
// How the threads of a block share a copy (copy_together()).
#pragma once

#include "kernels/batch.h"

namespace oh::kernels {

// `of` threads, the calling one being the lane-th; whole warps.
struct ThreadLanes {
  unsigned at;
  unsigned of;
  __device__ unsigned lane() const { return at; }
  __device__ unsigned count() const { return of; }
  // The next lane has it, but for the last one of the warp.
  __device__ Word next(const Word& own, const Word* words, uint64_t i, bool valid,
                       bool last) const {
    Word word;
    word.low = __shfl_down_sync(~0u, own.low, 1);
    word.high = __shfl_down_sync(~0u, own.high, 1);
    if (valid && (last || at % 32 == 31)) word = words[i + 1];
    return word;
  }
};

}  // namespace oh::kernels
