// SPDX-License-Identifier: Apache-2.0
//
// Operations by all blocks of a grid, each of which does a part of the work: puts with one signal,
// gets after one wait, and messages.
//
//   __global__ void push(oh_lane_handle lane, oh_remote_memory remote, float* data, size_t bytes) {
//     onehop::GridGroup grid;
//     onehop::put_signal(remote, 0, grid, data, bytes, lane, 3);
//   }
//
// The user keeps no counter: a lane (for signals, the slot) has a word that counts blocks and
// returns to its old value once all have arrived. If a kernel has more than one of these
// operations, or a message that goes through chunks, launch it so that all its blocks are on the
// GPU at once, as a cooperative launch does. Otherwise waiting blocks keep others off the GPU until
// the deadline. Put a barrier of the grid before an operation by one block on the same half of a
// lane.
//
// All threads of a block return the same result. Other blocks may return another fault.
//
// Threading: all threads of all blocks construct one GridGroup per kernel, and call together.
#pragma once

#include "onehop/detail/groups.cuh"
#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "onehop/detail/team_signal.h"

namespace onehop {

// All blocks of the calling grid. Each block is a team (detail/half.h).
class GridGroup {
 public:
  __device__ GridGroup() {}
  GridGroup(const GridGroup&) = delete;
  GridGroup& operator=(const GridGroup&) = delete;

  __device__ uint32_t team() const {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  }
  __device__ uint32_t teams() const { return gridDim.x * gridDim.y * gridDim.z; }
  __device__ uint32_t rank() const { return team() * block_.size() + block_.rank(); }
  __device__ uint32_t size() const { return teams() * block_.size(); }

  // The other functions act on the calling block.
  __device__ bool leads() const { return block_.leads(); }
  __device__ void sync() const { block_.sync(); }
  __device__ bool any(bool flag) const { return block_.any(flag); }
  __device__ uint64_t share(uint64_t value) const { return block_.share(value); }
  __device__ void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) const {
    block_.copy(to, from, bytes);
  }
  __device__ BlockGroup& part() { return block_; }
  __device__ void follow() const {}
  __device__ void let_next() const {}

  // Returns the handle for the next operation of the launch. Its token identifies the operation to
  // all blocks.
  __device__ oh_lane_handle next(const oh_lane_handle& handle) {
    uint64_t launch;
    asm("mov.u64 %0, %%gridid;" : "=l"(launch));
    oh_lane_handle lane = handle;
    lane.token = detail::grid_token(launch, operations_++);
    lane.follows = detail::grid_follows(launch);
    return lane;
  }

 private:
  BlockGroup block_;
  uint32_t operations_ = 0;
};

namespace detail {
template <>
inline constexpr bool kOneTeam<GridGroup> = false;
}  // namespace detail

// Copies into the peer's memory, one slice per block. If other blocks have written `data` in this
// kernel, put a barrier of the grid before. A block that puts only what it wrote itself can use a
// BlockGroup instead, before signal().
__device__ inline oh_lane_fault put(const oh_remote_memory& remote, uint64_t offset,
                                    GridGroup& grid, const void* data, uint64_t bytes) {
  if (offset > remote.size || bytes > remote.size - offset) return OH_LANE_RANGE;
  const detail::Slice slice = detail::slice_of(bytes, grid.team(), grid.teams());
  grid.sync();
  grid.copy(reinterpret_cast<uint8_t*>(remote.base + offset + slice.begin),
            static_cast<const uint8_t*>(data) + slice.begin, slice.size);
  return OH_LANE_OK;
}

// Copies out of the peer's memory, one slice per block. The slices of other blocks are visible
// after a barrier of the grid, or when the kernel has ended.
__device__ inline oh_lane_fault get(const oh_remote_memory& remote, uint64_t offset,
                                    GridGroup& grid, void* data, uint64_t bytes) {
  if (offset > remote.size || bytes > remote.size - offset) return OH_LANE_RANGE;
  const detail::Slice slice = detail::slice_of(bytes, grid.team(), grid.teams());
  grid.sync();
  grid.copy(static_cast<uint8_t*>(data) + slice.begin,
            reinterpret_cast<const uint8_t*>(remote.base + offset + slice.begin), slice.size);
  grid.sync();
  return OH_LANE_OK;
}

// Adds to the peer's count of a slot once, when all blocks have called, after everything that any
// of them has put. One grid at a time may signal a slot this way. Every block must call, whatever
// its own faults: an incomplete count makes a later replay of the same graph signal early. After a
// fault of this call, no grid may signal the slot until the link is closed.
__device__ inline oh_lane_fault signal(const oh_lane_handle& handle, GridGroup& grid, uint32_t slot,
                                       uint64_t count = 1) {
  const oh_lane_handle lane = grid.next(handle);
  return static_cast<oh_lane_fault>(
      detail::signal_by_teams<detail::DeviceAtomics>(lane, grid, slot, count));
}

__device__ inline oh_lane_fault put_signal(const oh_remote_memory& remote, uint64_t offset,
                                           GridGroup& grid, const void* data, uint64_t bytes,
                                           const oh_lane_handle& handle, uint32_t slot,
                                           uint64_t count = 1) {
  const oh_lane_fault fault = put(remote, offset, grid, data, bytes);
  return fault == OH_LANE_OK ? signal(handle, grid, slot, count) : fault;
}

// Waits until the count of a slot is at least `count`, then subtracts `count` once. The first block
// to arrive waits for all. Afterwards the peer's earlier puts are visible to each block, and all
// blocks return the same result. One grid at a time may wait for a slot this way. Every block must
// call, and there may be at most 65,535. After a fault that only some blocks have (another grid
// waits for the slot too, or not all blocks are on the GPU), no grid may wait for the slot until
// the link is closed. wait_until() and read_signal() of device.cuh subtract nothing, so each block
// may call them on its own.
__device__ inline oh_lane_fault wait(const oh_lane_handle& handle, GridGroup& grid, uint32_t slot,
                                     uint64_t count = 1) {
  const oh_lane_handle lane = grid.next(handle);
  return static_cast<oh_lane_fault>(
      detail::wait_by_teams<detail::DeviceAtomics>(lane, grid, slot, count));
}

// One message by all blocks. Each block may read any part of `data`: put a barrier of the grid
// between the call and writes by other blocks of this kernel, on either side. At most 65,535
// blocks.
__device__ inline oh_lane_fault send(const oh_lane_handle& handle, GridGroup& grid,
                                     const void* data, uint64_t bytes) {
  if (grid.teams() > 0xffff) return OH_LANE_RANGE;
  const oh_lane_handle lane = grid.next(handle);
  detail::Sender<detail::DeviceAtomics> sender(lane, grid);
  if (sender.take_for(grid, bytes)) {
    sender.send(grid, data, bytes, true);
    sender.give(grid);
  }
  return static_cast<oh_lane_fault>(grid.share(sender.half.fault));
}

// The same for a receive. Each block may write any part of `data`. The message is complete after a
// barrier of the grid, or when the kernel has ended.
__device__ inline oh_lane_fault recv(const oh_lane_handle& handle, GridGroup& grid, void* data,
                                     uint64_t capacity, uint64_t* received = nullptr,
                                     const oh_lane_target& target = {}) {
  if (grid.teams() > 0xffff) return OH_LANE_RANGE;
  const oh_lane_handle lane = grid.next(handle);
  detail::Receiver<detail::DeviceAtomics> receiver(lane, grid);
  if (receiver.take(grid)) {
    receiver.receive(grid, data, capacity, detail::place_in(target, data, capacity), true);
    receiver.give(grid);
  }
  if (received != nullptr) *received = receiver.length;
  return static_cast<oh_lane_fault>(grid.share(receiver.half.fault));
}

}  // namespace onehop
