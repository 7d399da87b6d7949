// SPDX-License-Identifier: Apache-2.0
//
// Copies by a block's bulk-copy engine: one thread keeps it busy, through tiles in shared memory. A
// few blocks fill a link. From sm_90 on; before that, and for what is not aligned to 16 bytes, the
// threads copy.
//
//   tile i   global ──load, counted by ready[i]──▶ shared ──store, in a group──▶ global
//
// Threading: all threads of a block call it alike. Takes 40 KiB of shared memory where it is used.
#pragma once

#include "onehop/detail/groups.cuh"

namespace onehop::detail {

inline constexpr uint32_t kBulkTile = 8192;
inline constexpr uint32_t kBulkTiles = 5;
// Below, the threads are as fast.
inline constexpr uint64_t kBulkLeast = 8 * kBulkTile;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
struct BulkTiles {
  alignas(128) uint8_t tiles[kBulkTiles][kBulkTile];
  alignas(8) uint64_t ready[kBulkTiles];
};

// By one thread: the tiles of one copy.
struct BulkCopy {
  BulkTiles& shared;
  uint8_t* to;
  const uint8_t* from;
  uint64_t count;  // of whole tiles
  uint64_t loaded = 0;

  __device__ static uint32_t place_of(const void* shared_memory) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory));
  }
  __device__ void begin() {
    for (uint64_t& word : shared.ready) {
      asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(place_of(&word)) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __device__ void end() {
    // All that was stored is in place.
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    for (uint64_t& word : shared.ready) {
      asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(place_of(&word)) : "memory");
    }
  }
  __device__ void load_next() {
    if (loaded == count) return;
    const uint32_t i = loaded % kBulkTiles;
    const uint32_t word = place_of(&shared.ready[i]);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(word), "r"(kBulkTile)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(place_of(shared.tiles[i])),
        "l"(from + loaded * kBulkTile), "r"(kBulkTile), "r"(word)
        : "memory");
    ++loaded;
  }
  __device__ void wait_for(uint64_t tile) {
    const uint32_t word = place_of(&shared.ready[tile % kBulkTiles]);
    const uint32_t phase = tile / kBulkTiles & 1;
    uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{ .reg .pred ready;\n"
          "  mbarrier.try_wait.parity.shared.b64 ready, [%1], %2;\n"
          "  selp.u32 %0, 1, 0, ready; }"
          : "=r"(done)
          : "r"(word), "r"(phase)
          : "memory");
    }
  }
  __device__ void store(uint64_t tile) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + tile * kBulkTile),
        "r"(place_of(shared.tiles[tile % kBulkTiles])), "r"(kBulkTile)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  __device__ void run() {
    begin();
    for (uint32_t i = 0; i + 1 < kBulkTiles; ++i) load_next();
    for (uint64_t tile = 0; tile < count; ++tile) {
      wait_for(tile);
      store(tile);
      // The tile before is read by now, or soon: the next one is loaded into its place.
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      load_next();
    }
    end();
  }
};
#endif

// By all threads of a block. Afterwards, behind a barrier, the bytes are in place for the thread
// with rank 0.
template <typename Group>
__device__ void copy_in_bulk(const Group& block, uint8_t* to, const uint8_t* from, uint64_t bytes) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const bool aligned =
      (reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from)) % 16 == 0;
  if (aligned && bytes >= kBulkLeast) {
    __shared__ BulkTiles shared;
    const uint64_t count = bytes / kBulkTile;
    // Others may have stored what is read, and the tiles may be in use.
    block.sync();
    if (thread_of_block() == 0) BulkCopy{shared, to, from, count}.run();
    to += count * kBulkTile;
    from += count * kBulkTile;
    bytes -= count * kBulkTile;
  }
#endif
  copy_by(thread_of_block(), block_size(), to, from, bytes);
}

}  // namespace onehop::detail
