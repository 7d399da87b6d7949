// SPDX-License-Identifier: Apache-2.0
//
// Every kind of group, with CUDA's cooperative groups beside ours, for test_device_ptx.py to
// compile.
#include <cooperative_groups.h>

#include "onehop/device.cuh"

namespace cg = cooperative_groups;

template <typename Group>
__device__ void exchange(const oh_lane_handle& lane, Group& group, void* data, uint64_t bytes) {
  if (onehop::send(lane, group, data, bytes) == OH_LANE_OK) {
    onehop::recv(lane, group, data, bytes);
  }
}

#define KERNEL(name)                                                                       \
  extern "C" __global__ void name(const __grid_constant__ oh_lane_handle lane, void* data, \
                                  uint64_t bytes, uint64_t* place)

KERNEL(by_thread) {
  onehop::ThreadGroup thread;
  exchange(lane, thread, data, bytes);
}
KERNEL(by_warps) {
  onehop::WarpsGroup warps(1 + threadIdx.x / 128, threadIdx.x / 128 * 4, 4);
  exchange(lane, warps, data, bytes);
}
KERNEL(by_tile) {
  onehop::CoopGroup group(cg::tiled_partition<16>(cg::this_thread_block()));
  exchange(lane, group, data, bytes);
}
KERNEL(by_coalesced_threads) {
  if (threadIdx.x % 3 == 0) return;
  onehop::CoopGroup group(cg::coalesced_threads());
  exchange(lane, group, data, bytes);
}
KERNEL(by_thread_block) {
  onehop::CoopGroup group(cg::this_thread_block());
  exchange(lane, group, data, bytes);
}
KERNEL(by_tile_of_any_size) {
  __shared__ uint64_t places[64];
  const cg::thread_group tile = cg::tiled_partition(cg::this_thread_block(), 16);
  onehop::CoopGroup group(tile, &places[threadIdx.x / 16]);
  exchange(lane, group, data, bytes);
}
KERNEL(by_grid) {
  onehop::CoopGroup group(cg::this_grid(), place);
  exchange(lane, group, data, bytes);
}
KERNEL(by_blocks_of_a_grid) {
  onehop::GridGroup grid;
  onehop::send(lane, grid, data, bytes);
  onehop::recv(lane, grid, data, bytes);
}
KERNEL(by_grid_with_one_signal) {
  onehop::GridGroup grid;
  onehop::put_signal({*place, bytes}, 0, grid, data, bytes, lane, 1);
}
KERNEL(by_grid_with_one_wait) {
  onehop::GridGroup grid;
  onehop::wait(lane, grid, 1, bytes);
  onehop::get({*place, bytes}, 0, grid, data, bytes);
}
// Each block by itself.
KERNEL(by_grid_that_looks) {
  onehop::GridGroup grid;
  uint64_t count;
  onehop::read_signal(lane, grid, 1, &count);
  onehop::wait_until(lane, grid, 1, count + 1);
}
