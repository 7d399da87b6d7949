// SPDX-License-Identifier: Apache-2.0
#include "kernels/worker.h"

#include "kernels/lanes.cuh"
#include "onehop/detail/device_atomics.h"

namespace {

using oh::kernels::kOneWarp;
using oh::kernels::kWorkerThreads;
using oh::kernels::WorkerArgs;
using onehop::detail::Command;
using onehop::detail::CommandRing;
using onehop::detail::DeviceAtomics;
using onehop::detail::kLanes;
using onehop::detail::kLaneWords;

constexpr unsigned kAll = ~0u;

// The first warp's order to the other warps.
struct Order {
  Command command;
  bool leave;
};

__device__ void copy(const Command& command, unsigned threads) {
  onehop::detail::copy_together(oh::kernels::ThreadLanes{threadIdx.x, threads},
                                reinterpret_cast<uint8_t*>(command.target),
                                reinterpret_cast<const uint8_t*>(command.source), command.bytes);
}

// The first warp. It alone polls the ring, and it wakes the other warps for larger copies.
struct FirstWarp {
  const CommandRing& ring;
  Order* order;

  __device__ uint64_t begin() const {
    return onehop::detail::poll<DeviceAtomics>(ring.through, ring.epoch);
  }
  // Four threads read a lane each, in one load.
  __device__ bool read(uint64_t position, Command* command) const {
    const unsigned lane = threadIdx.x;
    uint32_t payload[kLaneWords] = {};
    bool there = true;
    if (lane < kLanes) {
      there = onehop::detail::read_lane<DeviceAtomics>(ring, position, lane, payload);
    }
    if (!__all_sync(kAll, there)) return false;
    uint32_t words[kLanes * kLaneWords];
    ONEHOP_UNROLLED
    for (unsigned i = 0; i < kLanes * kLaneWords; ++i) {
      words[i] = __shfl_sync(kAll, payload[i % kLaneWords], i / kLaneWords);
    }
    memcpy(command, words, sizeof(words));
    // What the lanes acquired is visible to the whole warp.
    __syncwarp();
    return true;
  }
  __device__ void carry_out(const Command& command) const {
    if (command.bytes <= kOneWarp) {
      copy(command, 32);
      __syncwarp();
      return;
    }
    if (threadIdx.x == 0) *order = {command, false};
    __syncthreads();
    copy(command, kWorkerThreads);
    __syncthreads();
  }
  __device__ void finish(uint64_t position, const Command& command) const {
    if (threadIdx.x == 0) {
      onehop::detail::finish_command<DeviceAtomics>(ring, position, command);
    }
  }
  __device__ void say(uint64_t* word, uint64_t value) const {
    if (threadIdx.x == 0) DeviceAtomics::store_release(word, value);
  }
  __device__ void settle() const {
    __syncwarp();
    DeviceAtomics::full_fence();
  }
  __device__ uint64_t now() const { return __shfl_sync(kAll, DeviceAtomics::now(), 0); }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kWorkerThreads) onehop_worker(const WorkerArgs args) {
  __shared__ Order order;
  if (threadIdx.x >= 32) {
    while (true) {
      __syncthreads();
      if (order.leave) return;
      copy(order.command, kWorkerThreads);
      __syncthreads();
    }
  }
  oh::kernels::serve(args, FirstWarp{args.ring, &order});
  if (threadIdx.x == 0) order.leave = true;
  __syncthreads();
}
