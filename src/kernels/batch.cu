// SPDX-License-Identifier: Apache-2.0
#include "kernels/batch.h"

#include "kernels/lanes.cuh"
#include "onehop/detail/device_atomics.h"

namespace {

using onehop::detail::DeviceAtomics;

// The bytes of the calling thread block are visible everywhere when its first thread returns.
__device__ void end_copies() {
  __syncthreads();
  if (threadIdx.x == 0) DeviceAtomics::fence();
}

// Ends with end_copies().
template <typename Args>
__device__ void copy_shares(const Args& args) {
  const unsigned worker = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (worker < args.workers) {
    oh::kernels::walk_share(args, worker, [](uint64_t to, uint64_t from, uint64_t size) {
      onehop::detail::copy_together(oh::kernels::ThreadLanes{threadIdx.x % 32, 32},
                                    reinterpret_cast<uint8_t*>(to),
                                    reinterpret_cast<const uint8_t*>(from), size);
    });
  }
  end_copies();
}

}  // namespace

extern "C" __global__ void __launch_bounds__(oh::kernels::kBatchThreads)
    onehop_batch(const oh::kernels::BatchArgs args) {
  copy_shares(args);
  if (threadIdx.x != 0) return;
  // Each block releases its bytes, and the last one acquires those of the others.
  if (DeviceAtomics::fetch_add_ordered(args.finished, 1) + 1 != gridDim.x) return;
  DeviceAtomics::store_relaxed(args.finished, 0);
  DeviceAtomics::store_release(args.word, args.value);
}

extern "C" __global__ void __launch_bounds__(oh::kernels::kBatchThreads)
    onehop_stream_batch(const __grid_constant__ oh::kernels::StreamBatchArgs args) {
  copy_shares(args);
}

extern "C" __global__ void __launch_bounds__(oh::kernels::kBatchThreads)
    onehop_stream_few_blocks(const __grid_constant__ oh::kernels::FewBlocksArgs args) {
  const oh::kernels::BatchBlock& block = args.blocks[blockIdx.x / args.each];
  const unsigned at = blockIdx.x % args.each * blockDim.x + threadIdx.x;
  onehop::detail::copy_together(oh::kernels::ThreadLanes{at, args.each * blockDim.x},
                                reinterpret_cast<uint8_t*>(block.to),
                                reinterpret_cast<const uint8_t*>(block.from), block.size);
  end_copies();
}
