// SPDX-License-Identifier: Apache-2.0
#include "kernels/batch.h"

namespace {

struct WarpLanes {
  __device__ unsigned lane() const { return threadIdx.x % 32; }
  __device__ unsigned count() const { return 32; }
  // The next lane has it, but for the last one.
  __device__ oh::kernels::Word next(const oh::kernels::Word& own, const oh::kernels::Word* words,
                                    uint64_t i, bool valid, bool last) const {
    oh::kernels::Word word;
    word.low = __shfl_down_sync(~0u, own.low, 1);
    word.high = __shfl_down_sync(~0u, own.high, 1);
    if (valid && (last || lane() == 31)) word = words[i + 1];
    return word;
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(oh::kernels::kBatchThreads)
    onehop_batch(const oh::kernels::BatchArgs args) {
  const unsigned worker = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (worker < args.workers) {
    oh::kernels::walk_share(args, worker, [](uint64_t to, uint64_t from, uint64_t size) {
      oh::kernels::copy_together(WarpLanes(), reinterpret_cast<uint8_t*>(to),
                                 reinterpret_cast<const uint8_t*>(from), size);
    });
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  // This block's bytes are visible everywhere before it is counted, and so before the word is.
  __threadfence_system();
  if (atomicAdd(args.finished, 1) + 1 != gridDim.x) return;
  *args.finished = 0;
  __threadfence_system();
  *const_cast<volatile uint64_t*>(args.word) = args.value;
}
