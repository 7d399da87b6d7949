// SPDX-License-Identifier: Apache-2.0
#include "kernels/stream.h"

#include "onehop/detail/cluster.cuh"

namespace {

using oh::kernels::StreamOp;
using onehop::detail::arrive_at_cluster;
using onehop::detail::arrive_relaxed_at_cluster;
using onehop::detail::BlockOfCluster;
using onehop::detail::cluster_rank;
using onehop::detail::cluster_size;
using onehop::detail::DeviceAtomics;
using onehop::detail::sync_cluster;
using onehop::detail::tell_all;
using onehop::detail::wait_for_cluster;

// The blocks of one operation. Each block, or each cluster of blocks, is a team. A cluster shares
// its leader's values and its votes through the shared memory of its blocks with one barrier,
// whereas separate teams would poll global memory.
//
// `kAlone`: the operation has one team.
//
// A kernel constructs one of these at its start: the shared variables are the block's, and only
// this object records which of two places is next.
template <bool kAlone>
struct Teams {
  uint32_t at = 0;
  uint32_t of = 0;
  uint32_t share_turn = 0;
  uint32_t any_turn = 0;
  bool last = true;  // this is the team's last operation in the launch
  bool met = false;  // all blocks of the cluster run: their memory may be written

  __device__ static uint64_t* doubts() {
    __shared__ uint64_t places[3];  // two that alternate, and one of end()
    return places;
  }
  // A block's shared memory may be written only once the block runs. The first share() waits for
  // that, so it comes before any other barrier.
  __device__ Teams() {
    if (threadIdx.x == 0) doubts()[0] = doubts()[1] = doubts()[2] = 0;
    if (cluster_size() > 1) arrive_at_cluster();
  }
  Teams(const Teams&) = delete;
  Teams& operator=(const Teams&) = delete;
  // Programmatic dependent launch: this kernel may begin before the previous one in the stream has
  // ended, and the next one may begin once all blocks of this one have called let_next(). So at
  // most two kernels overlap.
  __device__ static void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  }
  __device__ void let_next() const {
#if __CUDA_ARCH__ >= 900
    if (last) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  }
  __device__ uint32_t team() const { return kAlone ? 0 : at; }
  __device__ uint32_t teams() const { return kAlone ? 1 : of; }
  __device__ uint32_t rank() const {
    return (team() * cluster_size() + cluster_rank()) * blockDim.x + threadIdx.x;
  }
  __device__ uint32_t size() const { return teams() * cluster_size() * blockDim.x; }
  __device__ bool leads() const { return threadIdx.x == 0 && cluster_rank() == 0; }

#if __CUDA_ARCH__ >= 900
  // Stores into the shared variable of the leader's block, before a relaxed barrier.
  __device__ static void tell_leader(const uint64_t* variable, uint64_t value) {
    const auto here = static_cast<uint32_t>(__cvta_generic_to_shared(variable));
    asm volatile(
        "st.relaxed.cluster.shared::cluster.u64 [%0], %1;\n"
        "fence.acq_rel.cluster;" ::"r"(onehop::detail::in_block(here, 0)),
        "l"(value)
        : "memory");
  }
#else
  __device__ static void tell_leader(uint64_t* variable, uint64_t value) { *variable = value; }
#endif

  __device__ BlockOfCluster part() const { return {}; }

  __device__ void sync() const { cluster_size() == 1 ? __syncthreads() : sync_cluster(); }
  __device__ void give_up(uint32_t fault) const { tell_leader(&doubts()[2], fault); }
  // The barrier is relaxed: a release would wait until all stores into the target are visible, but
  // it is read after the kernel. The leader's credit and cursor must not overtake a thread's loads
  // of its lines. They have returned when the thread arrives, because it has looked at their flags.
  // (A line behind the message that it has loaded in vain does not matter.)
  __device__ uint32_t end() const {
    if (cluster_size() == 1) {
      __syncthreads();
    } else {
      __syncwarp();
      arrive_relaxed_at_cluster();
      if (cluster_rank() == 0) wait_for_cluster();
    }
    return leads() ? static_cast<uint32_t>(doubts()[2]) : 0;
  }
  // any() and share() alternate between two places: all threads read a value before its place is
  // written again, since a barrier lies in between.
  __device__ bool any(bool flag) {
    const bool here = __syncthreads_or(flag) != 0;
    if (cluster_size() == 1) return here;
    any_turn ^= 1;
    if (threadIdx.x == 0) doubts()[any_turn ^ 1] = 0;
    if (threadIdx.x == 0 && here) tell_all(&doubts()[any_turn], 1);
    sync_cluster();
    return doubts()[any_turn] != 0;
  }
  __device__ uint64_t share(uint64_t value) {
    __shared__ uint64_t values[2];
    share_turn ^= 1;
    if (cluster_size() == 1) {
      if (leads()) values[share_turn] = value;
      __syncthreads();
    } else {
      if (!met) wait_for_cluster();
      met = true;
      if (leads()) tell_all(&values[share_turn], value);
      sync_cluster();
    }
    return values[share_turn];
  }
};

template <bool kAnySize>
__device__ __forceinline__ void run_one(const oh::kernels::StreamArgs& args) {
  // A cluster holds all blocks of a small message: lay_out() gives it one team.
#if __CUDA_ARCH__ >= 900
  Teams<!kAnySize> teams;
#else
  Teams<false> teams;
#endif
  teams.at = blockIdx.x / cluster_size();
  teams.of = args.op.teams;
  oh::kernels::run_stream<DeviceAtomics, kAnySize>(args.op, teams);
}

template <typename Args>
__device__ __forceinline__ void run_those_of(const Args& args) {
  Teams<false> teams;
  const uint32_t team = blockIdx.x / cluster_size();
  auto takes_part = [&](const StreamOp& op) {
    return team >= op.first && team < op.first + op.teams;
  };
  uint32_t last = 0;
  for (uint32_t i = 0; i < args.count; ++i) {
    if (takes_part(args.ops[i])) last = i;
  }
  // Operations on one half of a lane run one after the other, in the same blocks.
  for (uint32_t i = 0; i < args.count; ++i) {
    const StreamOp& op = args.ops[i];
    if (!takes_part(op)) continue;
    teams.at = team - op.first;
    teams.of = op.teams;
    teams.last = i == last;
    oh::kernels::run_stream<DeviceAtomics>(op, teams);
  }
}

}  // namespace

// One block per SM is enough: for two the compiler would spill registers on sm_80.
#define ONEHOP_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)

// One operation: a signal, a wait, or a message whose buffer has at most the lane's small size.
ONEHOP_KERNEL(oh::kernels::kStreamSmallThreads)
onehop_stream(const __grid_constant__ oh::kernels::StreamArgs args) { run_one<false>(args); }

// One operation on a large message. At most 96 registers, as if a block had more threads than it
// has: a block of three warps, such as a receive that waits for a put, has room beside each block.
constexpr uint32_t kWithRoom = 640;
static_assert(kWithRoom > oh::kernels::kStreamThreads);
ONEHOP_KERNEL(kWithRoom)
onehop_stream_large(const __grid_constant__ oh::kernels::StreamArgs args) { run_one<true>(args); }

ONEHOP_KERNEL(oh::kernels::kStreamThreads)
onehop_stream_few(const __grid_constant__ oh::kernels::StreamFewArgs args) { run_those_of(args); }

ONEHOP_KERNEL(oh::kernels::kStreamThreads)
onehop_stream_many(const __grid_constant__ oh::kernels::StreamManyArgs args) { run_those_of(args); }

ONEHOP_KERNEL(oh::kernels::kLanesThreads)
onehop_lanes(const __grid_constant__ oh::kernels::LanesArgs args) {
  onehop::BlockGroup block;
  oh::kernels::run_lanes<DeviceAtomics>(args, args.lane + blockIdx.x, block);
}
