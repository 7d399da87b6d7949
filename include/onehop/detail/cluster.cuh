// SPDX-License-Identifier: Apache-2.0
//
// The group of the threads of a cluster of blocks, and what a cluster shares.
//
// Threading: as groups.cuh.
#pragma once

#include "onehop/detail/groups.cuh"

namespace onehop {

namespace detail {

// The block within its cluster. Before sm_90 each block is a cluster of its own.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Orders no accesses.
__device__ __forceinline__ void arrive_relaxed_at_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The shared address of a variable in another block of the cluster, from the one in this block.
__device__ __forceinline__ uint32_t in_block(uint32_t here, uint32_t block) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
  return there;
}
// Stores into the same shared variable of every block of the cluster, all of which run.
__device__ __forceinline__ void tell_all(const uint64_t* variable, uint64_t value) {
  const auto here = static_cast<uint32_t>(__cvta_generic_to_shared(variable));
  for (uint32_t i = 0; i < cluster_size(); ++i) {
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(in_block(here, i)), "l"(value)
                 : "memory");
  }
}
#else
__device__ __forceinline__ uint32_t cluster_rank() { return 0; }
__device__ __forceinline__ uint32_t cluster_size() { return 1; }
__device__ __forceinline__ void arrive_at_cluster() {}
__device__ __forceinline__ void arrive_relaxed_at_cluster() {}
__device__ __forceinline__ void wait_for_cluster() {}
__device__ __forceinline__ void tell_all(const uint64_t*, uint64_t) {}
#endif
__device__ __forceinline__ void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

// A block of a cluster: the part that moves bytes of a message on its own.
struct BlockOfCluster {
  __device__ uint32_t number() const { return cluster_rank(); }
  __device__ uint32_t parts() const { return cluster_size(); }
  __device__ bool leads() const { return thread_of_block() == 0; }
  __device__ uint64_t share(uint64_t value) const { return share_by_block(leads(), value); }
  __device__ bool any(bool flag) const { return __syncthreads_or(flag) != 0; }
  __device__ void sync() const { __syncthreads(); }
  __device__ void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) const {
    copy_by(thread_of_block(), block_size(), to, from, bytes);
  }
};
}  // namespace detail

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// All threads of the calling cluster of blocks. Requires sm_90. The constructor is a barrier of the
// cluster.
struct ClusterGroup : detail::OneTeam<ClusterGroup> {
  __device__ ClusterGroup() {
    __syncthreads();
    Places& here = places();
    if (detail::thread_of_block() == 0) here.doubts[0] = here.doubts[1] = here.turn = 0;
    sync();
  }
  __device__ detail::BlockOfCluster part() const { return {}; }
  __device__ uint32_t rank() const {
    return detail::cluster_rank() * detail::block_size() + detail::thread_of_block();
  }
  __device__ uint32_t size() const { return detail::cluster_size() * detail::block_size(); }
  __device__ void sync() const {
    __syncwarp();  // the barrier needs whole warps
    detail::sync_cluster();
  }
  __device__ bool any(bool flag) const {
    const bool doubt = __syncthreads_or(flag) != 0;
    Places& here = places();
    const uint32_t turn = here.turn;
    if (doubt && detail::thread_of_block() == 0) detail::tell_all(&here.doubts[turn], 1);
    meet(turn);
    return here.doubts[turn] != 0;
  }
  __device__ uint64_t share(uint64_t value) const {
    __syncthreads();
    Places& here = places();
    const uint32_t turn = here.turn;
    if (leads()) detail::tell_all(&here.values[turn], value);
    meet(turn);
    return here.values[turn];
  }

 private:
  // Of each block, for all groups of the kernel, copies included. any() and share() alternate
  // between two places: all threads have read one before it is written again.
  struct Places {
    uint64_t doubts[2];
    uint64_t values[2];
    uint32_t turn;
  };
  __device__ static Places& places() {
    __shared__ Places of_block;
    return of_block;
  }
  // All threads of the block have read the turn, and the place of the one before.
  __device__ void meet(uint32_t turn) const {
    const bool first = detail::thread_of_block() == 0;
    if (first) places().doubts[turn ^ 1] = 0;
    sync();
    if (first) places().turn = turn ^ 1;
  }
};
#endif

}  // namespace onehop
