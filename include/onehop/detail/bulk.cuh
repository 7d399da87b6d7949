// SPDX-License-Identifier: Apache-2.0
//
// Bulk copies: one thread moves memory through shared memory of its block by the units that copy in
// bulk, whose writes lie on the link as whole packets. So a few processors fill it.
//
//   ring     stage 0 | stage 1 | ... | stage 7 | a barrier each
//   source ─▶ stage (its barrier says when) ─▶ target (in groups, which say when)
//
// Half of the stages are being filled, half emptied. Needs sm_90.
//
// Threading: one thread of a block; nobody else touches the ring.
#pragma once

#include "onehop/detail/word.h"

namespace onehop::detail {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

inline constexpr uint32_t kBulkStages = 8;

namespace bulk {

__device__ __forceinline__ uint32_t shared_address(const void* place) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(place));
}
__device__ __forceinline__ void begin(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void end(uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void fill(uint32_t stage, const uint8_t* from, uint32_t bytes,
                                     uint32_t barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(stage),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void wait_until_full(uint32_t barrier, uint32_t parity) {
  uint32_t full = 0;
  while (full == 0) {
    asm volatile(
        "{ .reg .pred p;\n"
        "  mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, p; }"
        : "=r"(full)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}
__device__ __forceinline__ void empty(uint8_t* to, uint32_t stage, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(stage), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

}  // namespace bulk

__device__ __forceinline__ void fence_for_bulk() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// Copies [from, from + bytes); both, the size and `stage` are multiples of 16. `ring`: kBulkStages
// of `stage` bytes of shared memory, at a multiple of 16. Afterwards all has arrived, as if the
// thread had stored it: a release by it says so to others. What others of the block have written is
// seen if each of them passes fence_for_bulk() before the barrier.
__device__ __noinline__ inline void copy_in_bulk(uint8_t* ring, uint32_t stage, uint8_t* to,
                                                 const uint8_t* from, uint64_t bytes) {
  constexpr uint32_t kAhead = kBulkStages / 2;
  const uint32_t stages = bulk::shared_address(ring);
  __shared__ uint64_t barriers[kBulkStages];
  const uint32_t barrier = bulk::shared_address(barriers);
  for (uint32_t i = 0; i < kBulkStages; ++i) bulk::begin(barrier + i * sizeof(uint64_t));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_for_bulk();
  const uint64_t count = (bytes + stage - 1) / stage;
  auto size_of = [=](uint64_t i) {
    const uint64_t left = bytes - i * stage;
    return static_cast<uint32_t>(left < stage ? left : stage);
  };
  for (uint64_t i = 0; i < count + kAhead; ++i) {
    const auto at = static_cast<uint32_t>(i % kBulkStages);
    if (i < count) {
      // All but the newest groups have left their stages.
      if (i >= kBulkStages) {
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kBulkStages - kAhead - 1)
                     : "memory");
      }
      bulk::fill(stages + at * stage, from + i * stage, size_of(i),
                 barrier + at * sizeof(uint64_t));
    }
    if (i < kAhead) continue;
    const uint64_t full = i - kAhead;
    const auto of = static_cast<uint32_t>(full % kBulkStages);
    bulk::wait_until_full(barrier + of * sizeof(uint64_t), full / kBulkStages % 2);
    bulk::empty(to + full * stage, stages + of * stage, size_of(full));
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  fence_for_bulk();
  for (uint32_t i = 0; i < kBulkStages; ++i) bulk::end(barrier + i * sizeof(uint64_t));
}

#endif

}  // namespace onehop::detail
