// SPDX-License-Identifier: Apache-2.0
#include "kernels/stream.h"

#include "onehop/detail/bulk.cuh"

namespace {

using oh::kernels::StreamOp;
using onehop::detail::DeviceAtomics;

// The blocks of one operation: each is a team.
struct Teams {
  uint32_t at;
  uint32_t of;
  uint32_t turn = 0;

  __device__ uint32_t team() const { return at; }
  __device__ uint32_t teams() const { return of; }
  __device__ uint32_t rank() const { return at * blockDim.x + threadIdx.x; }
  __device__ uint32_t size() const { return of * blockDim.x; }
  __device__ bool leads() const { return threadIdx.x == 0; }
  __device__ void sync() const { __syncthreads(); }
  __device__ bool any(bool flag) const { return __syncthreads_or(flag) != 0; }
  // In turns, so that the value before is read by all when it is overwritten.
  __device__ uint64_t share(uint64_t value) {
    __shared__ uint64_t values[2];
    turn ^= 1;
    if (leads()) values[turn] = value;
    __syncthreads();
    return values[turn];
  }
  __device__ void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) const {
    onehop::detail::copy_in_bulk(*this, to, from, bytes);
  }
};

__device__ __forceinline__ void run(const StreamOp& op) {
  Teams teams{blockIdx.x - op.first, op.teams};
  oh::kernels::run_stream<DeviceAtomics>(op, teams);
}

template <typename Args>
__device__ __forceinline__ void run_one_of(const Args& args) {
  // Those of one lane follow each other, in the same blocks.
  for (uint32_t i = 0; i < args.count; ++i) {
    const StreamOp& op = args.ops[i];
    if (blockIdx.x >= op.first && blockIdx.x < op.first + op.teams) run(op);
  }
}

}  // namespace

#define ONEHOP_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

ONEHOP_KERNEL(oh::kernels::kStreamThreads)
onehop_stream(const __grid_constant__ oh::kernels::StreamArgs args) { run(args.op); }

ONEHOP_KERNEL(oh::kernels::kStreamThreads)
onehop_stream_few(const __grid_constant__ oh::kernels::StreamFewArgs args) { run_one_of(args); }

ONEHOP_KERNEL(oh::kernels::kStreamThreads)
onehop_stream_many(const __grid_constant__ oh::kernels::StreamManyArgs args) { run_one_of(args); }

ONEHOP_KERNEL(oh::kernels::kLanesThreads)
onehop_lanes(const __grid_constant__ oh::kernels::LanesArgs args) {
  onehop::BlockGroup block;
  oh::kernels::run_lanes<DeviceAtomics>(args, args.lane + blockIdx.x, block);
}
