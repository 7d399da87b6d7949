// SPDX-License-Identifier: Apache-2.0
//
// Kernels by all of onehop/device.cuh, for test_torch_gpu_device.py: every thread that finds
// something wrong says so.
#include "onehop/device.cuh"

// Where cooperative_groups.h comes before.
#ifdef _COOPERATIVE_GROUPS_H_
namespace cg = cooperative_groups;
#endif

using Bytes = unsigned char;
using Count = unsigned long long;

// ---- A message each way, by every kind of group. Side 0 sends first.

#define EXCHANGE(name)                                                                  \
  extern "C" __global__ void name(oh_lane_handle lane, int side, Bytes* out, Bytes* in, \
                                  Count bytes, uint64_t* place, int* fault)

template <typename Group>
__device__ void exchange(const oh_lane_handle& lane, Group& group, int side, Bytes* out, Bytes* in,
                         Count bytes, int* fault) {
  for (int turn = 0; turn < 2; ++turn) {
    const oh_lane_fault found =
        turn == side ? onehop::send(lane, group, out, bytes) : onehop::recv(lane, group, in, bytes);
    if (found != OH_LANE_OK) atomicMax(fault, found);
  }
}

EXCHANGE(by_thread) {
  if (threadIdx.x != 5) return;
  onehop::ThreadGroup group;
  exchange(lane, group, side, out, in, bytes, fault);
}
EXCHANGE(by_warp) {
  if (threadIdx.x / 32 != 1) return;
  onehop::WarpGroup group;
  exchange(lane, group, side, out, in, bytes, fault);
}
// Two groups of a block at once; others of its warps do something else.
EXCHANGE(by_warps) {
  const unsigned warp = threadIdx.x / 32;
  oh_lane_fault found = OH_LANE_OK;
  if (warp < 2) {
    onehop::WarpsGroup senders(1, 0, 2);
    found = onehop::send(lane, senders, out, bytes);
  } else if (warp >= 4 && warp < 7) {
    onehop::WarpsGroup receivers(15, 4, 3);
    found = onehop::recv(lane, receivers, in, bytes);
  }
  if (found != OH_LANE_OK) atomicMax(fault, found);
}
EXCHANGE(by_block) {
  onehop::BlockGroup group;
  exchange(lane, group, side, out, in, bytes, fault);
}
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(4, 1, 1)
    by_cluster(oh_lane_handle lane, int side, Bytes* out, Bytes* in, Count bytes, uint64_t* place,
               int* fault) {
  onehop::ClusterGroup group;
  exchange(lane, group, side, out, in, bytes, fault);
}
#endif
EXCHANGE(by_grid) {
  onehop::GridGroup group;
  exchange(lane, group, side, out, in, bytes, fault);
}

// Three messages each way while the group holds its half of the lane.
template <typename Group>
__device__ void exchange_many(const oh_lane_handle& lane, Group& group, int side, Bytes* out,
                              Bytes* in, Count bytes, int* fault) {
  const auto note = [&](oh_lane_fault found) {
    if (found != OH_LANE_OK) atomicMax(fault, found);
  };
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == side) {
      onehop::SendLane<Group> to(lane, group);
      for (Count i = 3; i > 0; --i) note(to.send(out, bytes / i));
      note(to.close());
    } else {
      onehop::RecvLane<Group> from(lane, group);
      for (Count i = 3; i > 0; --i) note(from.recv(in, bytes / i));
      note(from.close());
    }
  }
}
EXCHANGE(many_by_warp) {
  if (threadIdx.x / 32 != 1) return;
  onehop::WarpGroup group;
  exchange_many(lane, group, side, out, in, bytes, fault);
}
EXCHANGE(many_by_block) {
  onehop::BlockGroup group;
  exchange_many(lane, group, side, out, in, bytes, fault);
}
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(4, 1, 1)
    many_by_cluster(oh_lane_handle lane, int side, Bytes* out, Bytes* in, Count bytes,
                    uint64_t* place, int* fault) {
  onehop::ClusterGroup group;
  exchange_many(lane, group, side, out, in, bytes, fault);
}
#endif
#ifdef _COOPERATIVE_GROUPS_H_
EXCHANGE(by_tile) {
  if (threadIdx.x / 16 != 3) return;
  onehop::CoopGroup group(cg::tiled_partition<16>(cg::this_thread_block()));
  exchange(lane, group, side, out, in, bytes, fault);
}
EXCHANGE(by_coalesced_threads) {
  if (threadIdx.x % 3 == 0 || threadIdx.x >= 32) return;
  onehop::CoopGroup group(cg::coalesced_threads());
  exchange(lane, group, side, out, in, bytes, fault);
}
EXCHANGE(by_thread_block) {
  onehop::CoopGroup group(cg::this_thread_block());
  exchange(lane, group, side, out, in, bytes, fault);
}
EXCHANGE(by_part_of_a_warp) {
  __shared__ uint64_t own;
  const cg::thread_group tile = cg::tiled_partition(cg::this_thread_block(), 8);
  if (threadIdx.x / 8 != 2) return;
  onehop::CoopGroup group(tile, &own);
  exchange(lane, group, side, out, in, bytes, fault);
}
// Launched cooperatively: one team, whose barrier is the grid's.
EXCHANGE(by_cooperative_grid) {
  onehop::CoopGroup group(cg::this_grid(), place);
  exchange(lane, group, side, out, in, bytes, fault);
}
#endif

// ---- What groups share, while other groups of the block do, too

template <typename Group>
__device__ void share_and_vote(Group& group, Count rounds, int* wrong) {
  for (Count i = 0; i < rounds; ++i) {
    if (group.share(group.leads() ? i : ~i) != i) atomicAdd(wrong, 1);
    const bool one = i % 3 == 0;
    if (group.any(one && group.rank() == i % group.size()) != one) atomicAdd(wrong, 1);
  }
}
// Eight warps: 1, 2 and 4 of them, and one apart.
extern "C" __global__ void share_by_warps(Count rounds, int* wrong) {
  const unsigned warp = threadIdx.x / 32;
  if (warp == 0) {
    onehop::WarpsGroup group(3, 0, 1);
    share_and_vote(group, rounds, wrong);
  } else if (warp < 3) {
    onehop::WarpsGroup group(1, 1, 2);
    share_and_vote(group, rounds, wrong);
  } else if (warp < 7) {
    onehop::WarpsGroup group(2, 3, 4);
    share_and_vote(group, rounds, wrong);
  } else {
    onehop::WarpGroup group;
    share_and_vote(group, rounds, wrong);
  }
}

#if __CUDA_ARCH__ >= 900
// Votes and values in any order, by copies and by groups that are constructed in between.
__device__ void vote_or_share(onehop::ClusterGroup group, Count i, Count step, int* wrong) {
  if (step % 2 == 0) {
    if (group.share(group.leads() ? i : ~i) != i) atomicAdd(wrong, 1);
  } else {
    const bool one = step / 2 % 2 == 0;
    if (group.any(one && group.rank() == i % group.size()) != one) atomicAdd(wrong, 1);
  }
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) share_by_cluster(Count rounds, int* wrong) {
  onehop::ClusterGroup group;
  for (Count i = 0; i < rounds; ++i) {
    const Count step = i * 0x9e3779b97f4a7c15u >> 32;
    vote_or_share(group, i, step, wrong);
    if (step / 4 % 64 == 0) {
      onehop::ClusterGroup other;
      vote_or_share(other, i, step / 8, wrong);
    }
  }
}
#endif

// ---- Puts by a grid with one signal, waits by all blocks, no counter of ours

__device__ Bytes byte_of(unsigned round, Count i) {
  return static_cast<Bytes>(i * 7 + i / 251 + round * 13);
}

// Slot 3: a round is there. Slot 5: it was looked at.
extern "C" __global__ void put_rounds(oh_lane_handle lane, oh_remote_memory remote, Bytes* out,
                                      Count bytes, unsigned rounds, int* fault) {
  onehop::GridGroup grid;
  onehop::BlockGroup block;
  for (unsigned round = 0; round < rounds; ++round) {
    oh_lane_fault found = onehop::wait_until(lane, grid, 5, round);
    // Each block writes what it puts.
    const onehop::detail::Slice own = onehop::detail::slice_of(bytes, grid.team(), grid.teams());
    for (Count i = own.begin + threadIdx.x; i < own.begin + own.size; i += blockDim.x) {
      out[i] = byte_of(round, i);
    }
    if (found == OH_LANE_OK) found = onehop::put_signal(remote, 0, grid, out, bytes, lane, 3);
    if (found != OH_LANE_OK) {
      atomicMax(fault, found);
      return;
    }
  }
}
extern "C" __global__ void look_at_rounds(oh_lane_handle lane, Bytes* in, Count bytes,
                                          unsigned rounds, int* fault) {
  onehop::GridGroup grid;
  onehop::BlockGroup block;
  for (unsigned round = 0; round < rounds; ++round) {
    const oh_lane_fault found = onehop::wait_until(lane, grid, 3, round + 1);
    if (found != OH_LANE_OK) {
      atomicMax(fault, found);
      return;
    }
    for (Count i = grid.rank(); i < bytes; i += grid.size()) {
      if (in[i] != byte_of(round, i)) atomicMax(fault, 100);
    }
    // The last block of the grid says that all have looked.
    if (onehop::signal(lane, grid, 5) != OH_LANE_OK) atomicMax(fault, 101);
  }
}
// The count of a slot, when all have come.
extern "C" __global__ void take_all(oh_lane_handle lane, unsigned slot, Count count, int* fault) {
  onehop::BlockGroup block;
  uint64_t there = 0;
  if (onehop::wait_until(lane, block, slot, count) != OH_LANE_OK) atomicMax(fault, 109);
  if (onehop::read_signal(lane, block, slot, &there) != OH_LANE_OK) atomicMax(fault, 110);
  if (there != count) atomicMax(fault, 111);
  if (onehop::wait(lane, block, slot, count) != OH_LANE_OK) atomicMax(fault, 112);
  if (onehop::read_signal(lane, block, slot, &there) != OH_LANE_OK || there != 0) {
    atomicMax(fault, 113);
  }
}

// ---- Gets by a grid behind one wait. Slot 3: a round is there. Slot 5: it was got.

extern "C" __global__ void write_rounds(oh_lane_handle lane, Bytes* own, Count bytes,
                                        unsigned rounds, int* fault) {
  onehop::GridGroup grid;
  for (unsigned round = 0; round < rounds; ++round) {
    for (Count i = grid.rank(); i < bytes; i += grid.size()) own[i] = byte_of(round, i);
    oh_lane_fault found = onehop::signal(lane, grid, 3);
    if (found == OH_LANE_OK) found = onehop::wait(lane, grid, 5);
    if (found != OH_LANE_OK) atomicMax(fault, found);
  }
}
extern "C" __global__ void get_rounds(oh_lane_handle lane, oh_remote_memory remote, Bytes* in,
                                      Count bytes, unsigned rounds, int* fault) {
  onehop::GridGroup grid;
  const onehop::detail::Slice own = onehop::detail::slice_of(bytes, grid.team(), grid.teams());
  for (unsigned round = 0; round < rounds; ++round) {
    oh_lane_fault found = onehop::wait(lane, grid, 3);
    if (found == OH_LANE_OK) found = onehop::get(remote, 0, grid, in, bytes);
    for (Count i = own.begin + threadIdx.x; i < own.begin + own.size; i += blockDim.x) {
      if (in[i] != byte_of(round, i)) atomicMax(fault, 180);
    }
    if (found == OH_LANE_OK) found = onehop::signal(lane, grid, 5);
    if (found != OH_LANE_OK) atomicMax(fault, found);
  }
  if (onehop::get(remote, 8, grid, in, remote.size) != OH_LANE_RANGE) atomicMax(fault, 181);
  if (onehop::wait(lane, grid, 64) != OH_LANE_RANGE) atomicMax(fault, 182);
}
// Every block says what became of the wait.
extern "C" __global__ void wait_by_grid(oh_lane_handle lane, Count count, Count* faults,
                                        int* fault) {
  onehop::GridGroup grid;
  const oh_lane_fault found = onehop::wait(lane, grid, 4, count);
  if (threadIdx.x == blockDim.x - 1) faults[blockIdx.x] = found;
}

// ---- Signals without an order: one fence for two of them

extern "C" __global__ void put_and_signal_twice(oh_lane_handle lane, oh_remote_memory remote,
                                                const Bytes* out, Count bytes, int* fault) {
  onehop::BlockGroup block;
  if (onehop::put(remote, 0, block, out, bytes) != OH_LANE_OK) atomicMax(fault, 190);
  onehop::flush(block);
  for (unsigned slot : {6u, 7u, 64u}) {
    const oh_lane_fault found = onehop::relaxed_signal(lane, block, slot, slot);
    if (found != (slot < 64 ? OH_LANE_OK : OH_LANE_RANGE)) atomicMax(fault, 191);
  }
}
// A block for each of the slots.
extern "C" __global__ void wait_for_either(oh_lane_handle lane, const Bytes* in, Bytes value,
                                           Count bytes, int* fault) {
  onehop::BlockGroup block;
  const unsigned slot = 6 + blockIdx.x;
  if (onehop::wait(lane, block, slot, slot) != OH_LANE_OK) atomicMax(fault, 192);
  for (Count i = threadIdx.x; i < bytes; i += blockDim.x) {
    if (in[i] != value) atomicMax(fault, 193);
  }
}

// ---- get, flush, set_signal, and arguments that are wrong

// Side 0: puts, then a flag of its own behind a flush; takes the bytes back.
extern "C" __global__ void put_and_get(oh_lane_handle lane, oh_remote_memory remote, Bytes* out,
                                       Bytes* back, Count bytes, int* fault) {
  onehop::BlockGroup block;
  for (Count i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = byte_of(1, i);
  if (onehop::put(remote, 0, block, out, bytes) != OH_LANE_OK) atomicMax(fault, 120);
  onehop::flush(block);
  if (threadIdx.x == 3) *reinterpret_cast<volatile uint64_t*>(remote.base + remote.size - 8) = 7;
  if (onehop::wait_until(lane, block, 6, 77) != OH_LANE_OK) atomicMax(fault, 121);
  for (Count begin : {Count{0}, Count{1}, Count{33}}) {
    if (onehop::get(remote, begin, block, back, bytes - begin) != OH_LANE_OK) atomicMax(fault, 122);
    for (Count i = threadIdx.x; i < bytes - begin; i += blockDim.x) {
      if (back[i] != byte_of(2, begin + i)) atomicMax(fault, 123);
    }
  }
  const Count size = remote.size;
  if (onehop::get(remote, 1, block, back, size) != OH_LANE_RANGE) atomicMax(fault, 124);
  if (onehop::get(remote, size + 1, block, back, 0) != OH_LANE_RANGE) atomicMax(fault, 125);
  if (onehop::get(remote, 8, block, back, ~Count{0} - 4) != OH_LANE_RANGE) atomicMax(fault, 126);
  uint64_t count = 0;
  if (onehop::set_signal(lane, block, 64, 1) != OH_LANE_RANGE) atomicMax(fault, 127);
  if (onehop::wait_until(lane, block, 64, 0) != OH_LANE_RANGE) atomicMax(fault, 128);
  if (onehop::read_signal(lane, block, 64, &count) != OH_LANE_RANGE) atomicMax(fault, 129);
  onehop::GridGroup grid;
  if (onehop::signal(lane, grid, 64) != OH_LANE_RANGE) atomicMax(fault, 130);
  if (onehop::put(remote, 8, grid, out, size) != OH_LANE_RANGE) atomicMax(fault, 131);
}
// Side 1: sees the flag and what is before it, changes all bytes, and says so.
extern "C" __global__ void change_bytes(oh_lane_handle lane, Bytes* in, Count bytes, Count size,
                                        int* fault) {
  onehop::BlockGroup block;
  if (threadIdx.x == 0) {
    const volatile uint64_t* flag = reinterpret_cast<volatile uint64_t*>(in + size - 8);
    for (unsigned polls = 0; *flag != 7; ++polls) {
      if (polls == 20'000'000) {
        atomicMax(fault, 142);
        break;
      }
    }
    __threadfence_system();
  }
  __syncthreads();
  for (Count i = threadIdx.x; i < bytes; i += blockDim.x) {
    if (in[i] != byte_of(1, i)) atomicMax(fault, 140);
    in[i] = byte_of(2, i);
  }
  if (onehop::set_signal(lane, block, 6, 77) != OH_LANE_OK) atomicMax(fault, 141);
}

// ---- Looks for messages

extern "C" __global__ void probe_and_receive(oh_lane_handle lane, Bytes* in, Count capacity,
                                             unsigned messages, Count* sizes, Count* misses,
                                             int* fault) {
  onehop::BlockGroup block;
  onehop::RecvLane<onehop::BlockGroup> receiver(lane, block);
  Count missed = 0;
  for (unsigned i = 0; i < messages; ++i) {
    while (!receiver.probe() && receiver.fault() == OH_LANE_OK) ++missed;
    if (receiver.fault() != OH_LANE_OK) break;
    if (threadIdx.x == 0) sizes[i] = receiver.bytes();
    const Count found = receiver.bytes();
    if (receiver.recv(in, capacity) != OH_LANE_OK || receiver.bytes() != found) {
      atomicMax(fault, 150);
    }
  }
  const oh_lane_fault found = receiver.close();
  if (found != OH_LANE_OK) atomicMax(fault, found);
  if (threadIdx.x == 0) *misses = missed;
}

// ---- Many messages by all blocks, one behind the other, of sizes that alternate

extern "C" __global__ void send_many(oh_lane_handle lane, const Bytes* out, Count small,
                                     Count large, unsigned messages, int* fault) {
  onehop::GridGroup grid;
  for (unsigned i = 0; i < messages; ++i) {
    const oh_lane_fault found = onehop::send(lane, grid, out + i * large, i % 2 ? large : small);
    if (found != OH_LANE_OK) atomicMax(fault, found);
  }
}
extern "C" __global__ void recv_many(oh_lane_handle lane, Bytes* in, Count small, Count large,
                                     unsigned messages, int* fault) {
  onehop::GridGroup grid;
  for (unsigned i = 0; i < messages; ++i) {
    uint64_t received = 0;
    const oh_lane_fault found =
        onehop::recv(lane, grid, in + i * large, i % 2 ? large : small, &received);
    if (found != OH_LANE_OK) atomicMax(fault, found);
    if (received != (i % 2 ? large : small)) atomicMax(fault, 160);
  }
}

// ---- All ranks: what each has stored before a barrier is there behind it

template <typename Group>
__device__ void meet(const oh_comm_handle& comm, Group& group, const oh_remote_memory* theirs,
                     const Count* mine, Count rounds, int* fault) {
  for (Count round = 1; round <= rounds; ++round) {
    for (unsigned rank = group.rank(); rank < comm.size; rank += group.size()) {
      if (rank == comm.rank) continue;
      Count* there = reinterpret_cast<Count*>(theirs[rank].base) + comm.rank;
      *const_cast<volatile Count*>(there) = round;
    }
    oh_lane_fault found = onehop::barrier(comm, group, 9);
    for (unsigned rank = group.rank(); rank < comm.size; rank += group.size()) {
      const Count seen = *const_cast<const volatile Count*>(mine + rank);
      if (rank != comm.rank && seen != round) atomicMax(fault, 170);
    }
    // Nobody stores anew before all have looked.
    if (found == OH_LANE_OK) found = onehop::barrier(comm, group, 9);
    if (found != OH_LANE_OK) atomicMax(fault, found);
  }
}
#define MEET(name, Group, attribute)                                                           \
  extern "C" __global__ void attribute name(const __grid_constant__ oh_comm_handle comm,       \
                                            const oh_remote_memory* theirs, const Count* mine, \
                                            Count rounds, int* fault) {                        \
    Group group;                                                                               \
    meet(comm, group, theirs, mine, rounds, fault);                                            \
  }
MEET(meet_by_warp, onehop::WarpGroup, )
MEET(meet_by_block, onehop::BlockGroup, )
#if __CUDA_ARCH__ >= 900
MEET(meet_by_cluster, onehop::ClusterGroup, __cluster_dims__(4, 1, 1))
#endif
