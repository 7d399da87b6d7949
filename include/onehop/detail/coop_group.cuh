// SPDX-License-Identifier: Apache-2.0
//
// Adapts groups of CUDA's cooperative groups, and other groups with the same functions:
//
//   auto tile = cooperative_groups::tiled_partition<16>(cooperative_groups::this_thread_block());
//   onehop::CoopGroup group(tile);
//
// A group must have thread_rank(), size() or num_threads(), and sync(). Tiles and coalesced groups
// use any() and shfl(), thread blocks the votes of the block. Any other group, such as a grid or a
// user's own, needs a word of memory through which its threads share values. This file includes no
// CUDA header: under NVRTC cooperative_groups.h may be missing.
//
// Threading: as other groups. Ownership: keeps a copy of the group; the caller owns the word.
#pragma once

#include "onehop/detail/groups.cuh"

namespace onehop {

namespace detail {

// size() first: CUDA declares num_threads() of a thread_group, but does not define it.
template <typename Coop>
__device__ auto threads_of(const Coop& group, int) -> decltype(uint32_t(group.size())) {
  return static_cast<uint32_t>(group.size());
}
template <typename Coop>
__device__ auto threads_of(const Coop& group, long) -> decltype(uint32_t(group.num_threads())) {
  return static_cast<uint32_t>(group.num_threads());
}

// Detect the functions of a group by overload resolution.
template <typename Coop>
__device__ constexpr auto votes(Coop* group, int)
    -> decltype(group->any(0), group->shfl(uint64_t{}, 0), true) {
  return true;
}
template <typename Coop>
__device__ constexpr bool votes(Coop*, long) {
  return false;
}
template <typename Coop>
__device__ constexpr auto has_threads(Coop* group, int)
    -> decltype(group->thread_index(), group->group_index(), true) {
  return true;
}
template <typename Coop>
__device__ constexpr bool has_threads(Coop*, long) {
  return false;
}
template <typename Coop>
__device__ constexpr auto has_blocks(Coop* group, int) -> decltype(group->num_blocks(), true) {
  return true;
}
template <typename Coop>
__device__ constexpr bool has_blocks(Coop*, long) {
  return false;
}

template <typename Coop>
struct CoopKind {
  static constexpr Coop* kNone = nullptr;
  static constexpr bool kVotes = votes(kNone, 0);
  static constexpr bool kBlock = !kVotes && has_threads(kNone, 0) && !has_blocks(kNone, 0);
};

}  // namespace detail

template <typename Coop>
class CoopGroup : public detail::OneTeam<CoopGroup<Coop>> {
 public:
  // For a tile, coalesced threads or a thread block.
  __device__ explicit CoopGroup(const Coop& group) : CoopGroup(group, nullptr) {
    static_assert(kVotes || kBlock, "such a group needs a place: CoopGroup group(other, &place)");
  }
  // `place`: 8 aligned bytes in shared or device memory, at the same address for all threads of the
  // group. Nothing else may use them while the group is in use. A tile or block needs none.
  __device__ CoopGroup(const Coop& group, uint64_t* place)
      : group_(group),
        rank_(static_cast<uint32_t>(group.thread_rank())),
        size_(detail::threads_of(group, 0)),
        place_(place) {}

  __device__ uint32_t rank() const { return rank_; }
  __device__ uint32_t size() const { return size_; }
  __device__ void sync() { group_.sync(); }
  // A vote or a shuffle alone does not order memory.
  __device__ bool any(bool flag) {
    if constexpr (kVotes) {
      sync();
      return group_.any(flag) != 0;
    } else if constexpr (kBlock) {
      return __syncthreads_or(flag) != 0;
    } else {
      sync();
      if (rank_ == 0) *place_ = 0;
      sync();
      if (flag) *place_ = 1;
      sync();
      return *place_ != 0;
    }
  }
  __device__ uint64_t share(uint64_t value) {
    if constexpr (kVotes) {
      sync();
      return group_.shfl(value, 0);
    } else if constexpr (kBlock) {
      return detail::share_by_block(rank_ == 0, value);
    } else {
      sync();
      if (rank_ == 0) *place_ = value;
      sync();
      return *place_;
    }
  }

 private:
  static constexpr bool kVotes = detail::CoopKind<Coop>::kVotes;
  static constexpr bool kBlock = detail::CoopKind<Coop>::kBlock;
  Coop group_;
  uint32_t rank_;
  uint32_t size_;
  volatile uint64_t* place_;
};

}  // namespace onehop
