// SPDX-License-Identifier: Apache-2.0
//
// Kernels that show the groups of threads: some warps of a block, all blocks of a grid, signals, a
// probe that does not wait, and atomic operations by one thread. exchange.cu has a complete
// program.
#include "onehop/device.cuh"

__device__ void compute(float* data, uint64_t count) {
  for (uint64_t i = threadIdx.x; i < count; i += blockDim.x) data[i] *= 2;
}

// Two warps receive while the others compute.
__global__ void receive_beside(oh_lane_handle lane, float* in, uint64_t bytes, float* data,
                               uint64_t count) {
  // --8<-- [start:warps]
  if (threadIdx.x < 64) {               // warps 0 and 1
    onehop::WarpsGroup warps(1, 0, 2);  // named barrier 1, from warp 0, 2 warps
    onehop::recv(lane, warps, in, bytes);
  } else {
    compute(data, count);  // must not use named barrier 1
  }
  // --8<-- [end:warps]
}

// All blocks put, and the peer gets one signal.
__global__ void push(oh_lane_handle lane, oh_remote_memory remote, const float* data,
                     uint64_t bytes) {
  // --8<-- [start:grid]
  onehop::GridGroup grid;                                     // one per kernel, by all threads
  onehop::put_signal(remote, 0, grid, data, bytes, lane, 3);  // a slice per block, one signal
  // --8<-- [end:grid]
}

// All blocks wait for one signal, get, and send one signal at the end.
__global__ void pull(oh_lane_handle lane, oh_remote_memory remote, float* data, uint64_t bytes) {
  // --8<-- [start:pull]
  onehop::GridGroup grid;
  onehop::wait(lane, grid, 3);                // our slot 3: - 1, by one of the blocks
  onehop::get(remote, 0, grid, data, bytes);  // a slice per block
  onehop::signal(lane, grid, 4);              // after all blocks have finished
  // --8<-- [end:pull]
}

__global__ void put_and_wait(oh_lane_handle lane, oh_remote_memory remote, uint64_t offset,
                             const float* data, uint64_t bytes) {
  onehop::BlockGroup block;
  // --8<-- [start:signals]
  onehop::put_signal(remote, offset, block, data, bytes, lane, 3);  // the peer's slot 3: + 1
  onehop::wait(lane, block, 3);                                     // our slot 3: - 1
  // --8<-- [end:signals]
}

// Computes until a message arrives.
__global__ void compute_until(oh_lane_handle lane, float* buffer, uint64_t capacity, float* data,
                              uint64_t count) {
  onehop::BlockGroup block;
  // --8<-- [start:probe]
  onehop::RecvLane in(lane, block);
  while (!in.probe() && in.fault() == OH_LANE_OK) compute(data, count);
  if (in.bytes() <= capacity) in.recv(buffer, capacity);
  in.close();
  // --8<-- [end:probe]
}

// Each block takes pieces of work until none is left. The peer's region holds the number of the
// next piece, which the blocks of both sides increment.
__global__ void work_together(oh_remote_memory counter, float* data, uint64_t pieces,
                              uint64_t count) {
  __shared__ uint64_t next;
  while (true) {
    // --8<-- [start:atomics]
    if (threadIdx.x == 0) {
      next = pieces;
      onehop::fetch_add(counter, 0, 1, &next);  // 8 bytes at offset 0; `next`: the value before
    }
    // --8<-- [end:atomics]
    __syncthreads();
    const uint64_t piece = next;
    __syncthreads();
    if (piece >= pieces) return;
    compute(data + piece * count, count);
  }
}

// Every rank puts a piece into each other rank's region, and continues when all ranks have. `comm`
// is from oh_comm_device_handle (Python: bytes(comm.device_handle(0))), `remotes` has a region of
// each rank.
__global__ void all_gather(const __grid_constant__ oh_comm_handle comm,
                           const oh_remote_memory* remotes, const float* piece, uint64_t bytes) {
  // --8<-- [start:ranks]
  onehop::BlockGroup block;
  for (uint32_t rank = 0; rank < comm.size; ++rank) {
    if (rank != comm.rank) onehop::put(remotes[rank], comm.rank * bytes, block, piece, bytes);
  }
  onehop::barrier(comm, block, 5);  // slot 5 of every rank
  // --8<-- [end:ranks]
}
