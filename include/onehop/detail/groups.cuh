// SPDX-License-Identifier: Apache-2.0
//
// Groups of threads that execute an operation together: a thread, a warp, several warps, a block.
// cluster.cuh and grid.cuh have the groups of several blocks; coop_group.cuh adapts cooperative
// groups. All threads of a group make each call together, with the same arguments.
//
// Threading: all threads of a group construct it at the same place, one object for each thread.
#pragma once

#include "onehop/detail/copy.h"
#include "onehop/detail/device_atomics.h"

namespace onehop {

namespace detail {

// `of` threads; the calling one has rank `at`.
struct DirectLanes {
  static constexpr uint32_t kAtOnce = 4;
  uint32_t at;
  uint32_t of;
  __device__ uint32_t lane() const { return at; }
  __device__ uint32_t count() const { return of; }
  __device__ Pair next(const Pair&, const Pair* words, uint64_t i, bool valid, bool) const {
    return valid ? words[i + 1] : Pair{};
  }
};

__device__ __forceinline__ uint32_t thread_of_block() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ __forceinline__ uint32_t block_size() { return blockDim.x * blockDim.y * blockDim.z; }

#if defined(__CUDACC__)
// A named barrier of the block for this many threads. Warps may reach it diverged. (Host tests
// define their own.)
__device__ __forceinline__ void sync_named(uint32_t barrier, uint32_t threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ bool any_named(uint32_t barrier, uint32_t threads, bool flag) {
  uint32_t found;
  asm volatile(
      "{ .reg .pred flag, found;\n"
      "  setp.ne.u32 flag, %3, 0;\n"
      "  barrier.red.or.pred found, %1, %2, flag;\n"
      "  selp.u32 %0, 1, 0, found; }"
      : "=r"(found)
      : "r"(barrier), "r"(threads), "r"(static_cast<uint32_t>(flag))
      : "memory");
  return found != 0;
}
#endif

// Returns the leader's value to all threads of a block. All groups of the kernel, copies included,
// share one variable: the first barrier comes after all threads have read the previous value.
__device__ __forceinline__ uint64_t share_by_block(bool leads, uint64_t value) {
  __shared__ uint64_t shared;
  __syncthreads();
  if (leads) shared = value;
  __syncthreads();
  return shared;
}

// Not inline: it needs many registers, which the path of small messages should not reserve.
__device__ __noinline__ inline void copy_by(uint32_t at, uint32_t of, uint8_t* to,
                                            const uint8_t* from, uint64_t bytes) {
  copy_together(DirectLanes{at, of}, to, from, bytes);
}

// Whether a group is a single team; all but a grid's are.
template <typename Group>
inline constexpr bool kOneTeam = true;

// The members that all groups of one team share.
template <typename Own>
struct OneTeam {
  __device__ uint32_t team() const { return 0; }
  __device__ uint32_t teams() const { return 1; }
  __device__ bool leads() const { return own().rank() == 0; }
  // A user's kernel orders itself after earlier kernels and before later ones.
  __device__ void follow() const {}
  __device__ void let_next() const {}
  // The whole team is one part.
  __device__ Own& part() { return static_cast<Own&>(*this); }
  __device__ uint32_t parts() const { return 1; }
  __device__ uint32_t number() const { return 0; }
  __device__ void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) const {
    copy_by(own().rank(), own().size(), to, from, bytes);
  }

 private:
  __device__ const Own& own() const { return static_cast<const Own&>(*this); }
};

}  // namespace detail

// The calling thread alone. Copies bytes slowly; its signals need no barrier.
struct ThreadGroup : detail::OneTeam<ThreadGroup> {
  __device__ uint32_t rank() const { return 0; }
  __device__ uint32_t size() const { return 1; }
  __device__ void sync() const {}
  __device__ bool any(bool flag) const { return flag; }
  __device__ uint64_t share(uint64_t value) const { return value; }
};

// The 32 threads of the calling warp. All of them must take part.
struct WarpGroup : detail::OneTeam<WarpGroup> {
  __device__ uint32_t rank() const { return detail::thread_of_block() % 32; }
  __device__ uint32_t size() const { return 32; }
  __device__ void sync() const { __syncwarp(); }
  // A vote or a shuffle alone does not order memory.
  __device__ bool any(bool flag) const {
    __syncwarp();
    return __any_sync(~0u, flag) != 0;
  }
  __device__ uint64_t share(uint64_t value) const {
    __syncwarp();
    return __shfl_sync(~0u, value, 0);
  }
};

// `warps` warps of the calling block from warp `first` on, all 32 threads of each. They synchronize
// at `barrier`, one of the block's named barriers, 1 to 15. Use that barrier for nothing else while
// the group is in use. Groups with different barriers run independently, so warps that compute
// never wait for warps that communicate.
class WarpsGroup : public detail::OneTeam<WarpsGroup> {
 public:
  __device__ WarpsGroup(uint32_t barrier, uint32_t first, uint32_t warps)
      : barrier_(barrier), first_(32 * first), size_(32 * warps) {}
  __device__ uint32_t rank() const { return detail::thread_of_block() - first_; }
  __device__ uint32_t size() const { return size_; }
  __device__ void sync() const { detail::sync_named(barrier_, size_); }
  __device__ bool any(bool flag) const { return detail::any_named(barrier_, size_, flag); }
  // One variable per barrier, so per group in use, copies included; barriers as in BlockGroup.
  __device__ uint64_t share(uint64_t value) const {
    __shared__ uint64_t shared[16];
    sync();
    if (leads()) shared[barrier_] = value;
    sync();
    return shared[barrier_];
  }

 private:
  uint32_t barrier_;
  uint32_t first_;
  uint32_t size_;
};

// All threads of the calling block. The constructor is a barrier of the block.
struct BlockGroup : detail::OneTeam<BlockGroup> {
  __device__ BlockGroup() { __syncthreads(); }
  __device__ uint32_t rank() const { return detail::thread_of_block(); }
  __device__ uint32_t size() const { return detail::block_size(); }
  __device__ void sync() const { __syncthreads(); }
  __device__ bool any(bool flag) const { return __syncthreads_or(flag) != 0; }
  __device__ uint64_t share(uint64_t value) const { return detail::share_by_block(leads(), value); }
};

}  // namespace onehop
