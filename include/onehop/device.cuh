// SPDX-License-Identifier: Apache-2.0
//
// onehop inside kernels: messages, puts and signals between GPUs, from a user's own kernel.
//
//   __global__ void exchange(oh_lane_handle lane, float* out, float* in, size_t bytes) {
//     onehop::BlockGroup block;
//     onehop::send(lane, block, out, bytes);
//     onehop::recv(lane, block, in, bytes);
//   }
//
// oh_peer_device_handle makes a handle (Python: peer.device_handle(lane)). Arguments stay the same
// from launch to launch, also in replayed graphs: the lane keeps its own position. Within a lane,
// send k of one side matches receive k of the other. Only one group at a time may send on a lane,
// and only one may receive. A message that fits into the lane's ring is sent without waiting for
// the receiver.
//
// A kernel that sends or receives many messages takes the lane once:
//
//   onehop::SendLane lane(handle, block);
//   for (...) lane.send(data, bytes);
//   oh_lane_fault fault = lane.close();
//
// The end of its scope closes it too; that is a call of the whole group like any other.
//
// Functions return OH_LANE_OK or the fault of the operation. Every wait ends, at the handle's
// timeout at the latest. After a fault other than OH_LANE_TRUNCATED and OH_LANE_RANGE that half of
// the lane is unusable until oh_peer_reset_lane.
//
// Threading: all threads of the group call together, with the same arguments.
// Ownership: the caller owns the handle and the memory. Requires sm_70; clusters require sm_90.
// Sizes and offsets are in bytes.
#pragma once

#include "onehop/detail/atomic.h"
#include "onehop/detail/cluster.cuh"
#include "onehop/detail/coop_group.cuh"
#include "onehop/detail/grid.cuh"
#include "onehop/detail/groups.cuh"
#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "onehop/detail/signal.h"

namespace onehop {

// The sending half of a lane, held by a group from construction until close(). `Atomics`: only
// comparisons pass another one.
template <typename Group, typename Atomics = detail::DeviceAtomics>
class SendLane {
  static_assert(detail::kOneTeam<Group>, "a grid sends by send(), as often as it likes");

 public:
  __device__ SendLane(const oh_lane_handle& handle, Group& group)
      : sender_(handle, group), group_(group) {
    taken_ = sender_.take(group);
  }
  SendLane(const oh_lane_handle&&, Group&) = delete;  // the handle must outlive it
  SendLane(const SendLane&) = delete;
  SendLane& operator=(const SendLane&) = delete;
  // A lane that its kernel left open would stay busy until a reset.
  __device__ ~SendLane() { close(); }
  // `data` may be written again after the group's next barrier or its next call here.
  __device__ oh_lane_fault send(const void* data, uint64_t bytes) {
    if (taken_) sender_.send(group_, data, bytes);
    return fault();
  }
  __device__ oh_lane_fault close() {
    if (taken_) sender_.give(group_);
    taken_ = false;
    return fault();
  }
  // Of the last call, the same for all threads of the group.
  __device__ oh_lane_fault fault() const { return static_cast<oh_lane_fault>(sender_.half.fault); }

 private:
  detail::Sender<Atomics> sender_;
  Group& group_;
  bool taken_;
};

// The receiving half of a lane, held by a group from construction until close().
template <typename Group, typename Atomics = detail::DeviceAtomics>
class RecvLane {
  static_assert(detail::kOneTeam<Group>, "a grid receives by recv(), as often as it likes");

 public:
  __device__ RecvLane(const oh_lane_handle& handle, Group& group)
      : receiver_(handle, group), group_(group) {
    taken_ = receiver_.take(group);
  }
  RecvLane(const oh_lane_handle&&, Group&) = delete;
  RecvLane(const RecvLane&) = delete;
  RecvLane& operator=(const RecvLane&) = delete;
  __device__ ~RecvLane() { close(); }
  // Receives a message. Afterwards its bytes are visible to all threads of the group. A large
  // message goes straight into `data` if that is all within the target (oh_peer_lane_target).
  __device__ oh_lane_fault recv(void* data, uint64_t capacity, const oh_lane_target& target = {}) {
    if (taken_) {
      receiver_.receive(group_, data, capacity, detail::place_in(target, data, capacity));
    }
    return fault();
  }
  // Returns true once the next message has begun to arrive; recv() then waits only for the rest of
  // it. Never waits, so it never times out. If the host ends the lane, fault() becomes
  // OH_LANE_ABORTED after at most 1,024 calls:
  //   while (!lane.probe() && lane.fault() == OH_LANE_OK) work();
  __device__ bool probe() {
    constexpr uint32_t kLook = detail::LaneLimits::kLook;
    return taken_ && receiver_.probe(group_, ++probes_ % kLook == 0);
  }
  // Bytes of the last message received, or of the one that probe() found. More than the capacity
  // of the receive if that was too small.
  __device__ uint64_t bytes() const { return receiver_.length; }
  __device__ oh_lane_fault close() {
    if (taken_) receiver_.give(group_);
    taken_ = false;
    return fault();
  }
  __device__ oh_lane_fault fault() const {
    return static_cast<oh_lane_fault>(receiver_.half.fault);
  }

 private:
  detail::Receiver<Atomics> receiver_;
  Group& group_;
  bool taken_;
  uint32_t probes_ = 0;
};

// Sends one message of `bytes` bytes.
template <typename Group>
__device__ oh_lane_fault send(const oh_lane_handle& handle, Group& group, const void* data,
                              uint64_t bytes) {
  detail::Sender<detail::DeviceAtomics> sender(handle, group);
  if (sender.take_for(group, bytes)) {
    sender.send(group, data, bytes, true);
    sender.give(group);
  }
  return static_cast<oh_lane_fault>(sender.half.fault);
}

// Receives one message. `received` may be null; otherwise it gets the bytes of the message.
template <typename Group>
__device__ oh_lane_fault recv(const oh_lane_handle& handle, Group& group, void* data,
                              uint64_t capacity, uint64_t* received = nullptr,
                              const oh_lane_target& target = {}) {
  detail::Receiver<detail::DeviceAtomics> receiver(handle, group);
  if (receiver.take(group)) {
    receiver.receive(group, data, capacity, detail::place_in(target, data, capacity), true);
    receiver.give(group);
  }
  if (received != nullptr) *received = receiver.length;
  return static_cast<oh_lane_fault>(receiver.half.fault);
}

// Receives a message into `data` and forwards it on another lane.
template <typename Group>
__device__ oh_lane_fault forward(const oh_lane_handle& from, const oh_lane_handle& to, Group& group,
                                 void* data, uint64_t capacity, uint64_t* received = nullptr) {
  RecvLane<Group> in(from, group);
  in.recv(data, capacity);
  const uint64_t bytes = in.bytes();
  const oh_lane_fault fault = in.close();
  if (received != nullptr) *received = bytes;
  return fault == OH_LANE_OK ? send(to, group, data, bytes) : fault;
}

// Copies into the peer's memory. A signal or flush that follows makes the bytes visible there.
template <typename Group>
__device__ oh_lane_fault put(const oh_remote_memory& remote, uint64_t offset, Group& group,
                             const void* data, uint64_t bytes) {
  if (offset > remote.size || bytes > remote.size - offset) return OH_LANE_RANGE;
  group.sync();
  group.copy(reinterpret_cast<uint8_t*>(remote.base + offset), static_cast<const uint8_t*>(data),
             bytes);
  return OH_LANE_OK;
}

// Copies out of the peer's memory. It reads what the peer wrote before a signal that the group has
// waited for, or older bytes. Afterwards they are visible to all threads of the group.
template <typename Group>
__device__ oh_lane_fault get(const oh_remote_memory& remote, uint64_t offset, Group& group,
                             void* data, uint64_t bytes) {
  if (offset > remote.size || bytes > remote.size - offset) return OH_LANE_RANGE;
  group.sync();
  group.copy(static_cast<uint8_t*>(data), reinterpret_cast<const uint8_t*>(remote.base + offset),
             bytes);
  group.sync();
  return OH_LANE_OK;
}

// Atomic operations on 8 bytes of the peer's memory, by the calling thread alone. `before`, if not
// null, gets the previous value. They are atomic with each other, from every GPU, and with atomic
// operations of system scope by kernels of the owner (atomicAdd_system, cuda::thread_scope_system,
// or these on its own memory); not with atomicAdd, whose scope is one GPU. They require a link with
// native atomics, as lanes do: oh_peer_device_handle reports whether it has them. Release and
// acquire: an observer of the operation sees what the thread stored before, and what its group put
// before a sync() of the group. OH_LANE_RANGE, OH_LANE_MISALIGNED (the address is not a multiple of
// 8): nothing was done.
__device__ inline oh_lane_fault fetch_add(const oh_remote_memory& remote, uint64_t offset,
                                          uint64_t value, uint64_t* before = nullptr) {
  return detail::fetch_add<detail::DeviceAtomics>(remote, offset, value, before);
}

// Writes `value` if `expected` is found.
__device__ inline oh_lane_fault compare_swap(const oh_remote_memory& remote, uint64_t offset,
                                             uint64_t expected, uint64_t value,
                                             uint64_t* before = nullptr) {
  return detail::compare_swap<detail::DeviceAtomics>(remote, offset, expected, value, before);
}

// A fence at system scope: an observer (a GPU or the host) that sees a later store of the
// group's thread of rank 0 also sees everything that the group put or stored before the call. For
// flags of your own; signal() needs none.
template <typename Group>
__device__ void flush(Group& group) {
  static_assert(detail::kOneTeam<Group>, "each block of a grid flushes its own puts");
  group.sync();
  if (group.leads()) detail::DeviceAtomics::fence();
  group.sync();
}

// Signals: each side of a link has 64 slots, each with a count. The peer adds to a count, waits
// subtract from it. Any number of groups may signal, wait and read at once, on the same slot too.
// OH_LANE_RANGE: there is no such slot.

// Adds to the peer's count of a slot, after everything that the group has put before.
template <typename Group>
__device__ oh_lane_fault signal(const oh_lane_handle& handle, Group& group, uint32_t slot,
                                uint64_t count = 1) {
  const bool done = detail::signal<detail::DeviceAtomics>(handle, group, slot, count);
  return done ? OH_LANE_OK : OH_LANE_RANGE;
}

// Sets the peer's count of a slot, for example to a step number, after everything that the group
// has put before. For slots that one group at a time signals and from which no wait() subtracts.
template <typename Group>
__device__ oh_lane_fault set_signal(const oh_lane_handle& handle, Group& group, uint32_t slot,
                                    uint64_t count) {
  static_assert(detail::kOneTeam<Group>, "one block of a grid sets a signal");
  const bool done = detail::set_signal<detail::DeviceAtomics>(handle, group, slot, count);
  return done ? OH_LANE_OK : OH_LANE_RANGE;
}

// Adds to the peer's count of a slot without a fence or barrier: unordered with the group's earlier
// puts, stores and signals. For counts that do not guard memory, and for several signals after one
// flush().
template <typename Group>
__device__ oh_lane_fault relaxed_signal(const oh_lane_handle& handle, Group& group, uint32_t slot,
                                        uint64_t count = 1) {
  static_assert(detail::kOneTeam<Group>, "one block of a grid signals in no order");
  const bool done = detail::relaxed_signal<detail::DeviceAtomics>(handle, group, slot, count);
  return done ? OH_LANE_OK : OH_LANE_RANGE;
}

template <typename Group>
__device__ oh_lane_fault put_signal(const oh_remote_memory& remote, uint64_t offset, Group& group,
                                    const void* data, uint64_t bytes, const oh_lane_handle& handle,
                                    uint32_t slot, uint64_t count = 1) {
  const oh_lane_fault fault = put(remote, offset, group, data, bytes);
  return fault == OH_LANE_OK ? signal(handle, group, slot, count) : fault;
}

// Waits until the count of a slot is at least `count`, then subtracts `count`. Afterwards the
// peer's earlier puts are visible to the whole group. A wait that fails subtracts nothing.
template <typename Group>
__device__ oh_lane_fault wait(const oh_lane_handle& handle, Group& group, uint32_t slot,
                              uint64_t count = 1) {
  return static_cast<oh_lane_fault>(
      detail::wait_signal<detail::DeviceAtomics>(handle, group, slot, count));
}

// Returns once all ranks of the communicator have called it, on the same slot. Afterwards the
// earlier puts of every rank are visible to the group. It signals that slot of every other rank;
// use the slot for nothing else. After a fault (a rank timed out or was lost) use another slot on
// all ranks, since their counts may differ.
template <typename Group>
__device__ oh_lane_fault barrier(const oh_comm_handle& comm, Group& group, uint32_t slot) {
  static_assert(detail::kOneTeam<Group>,
                "one block of a grid calls it, between barriers of the grid");
  return static_cast<oh_lane_fault>(detail::barrier<detail::DeviceAtomics>(comm, group, slot));
}

// Waits until the count is at least `least`, and subtracts nothing: many groups may wait for it.
template <typename Group>
__device__ oh_lane_fault wait_until(const oh_lane_handle& handle, Group& group, uint32_t slot,
                                    uint64_t least) {
  return static_cast<oh_lane_fault>(
      detail::wait_until_signal<detail::DeviceAtomics>(handle, group, slot, least));
}

// Reads the count of a slot into `*count`, one for each thread, without waiting. Puts that the
// peer made before the counted signals are visible to the whole group. OH_LANE_ABORTED: the host
// ended all waits; the count may not grow any more.
template <typename Group>
__device__ oh_lane_fault read_signal(const oh_lane_handle& handle, Group& group, uint32_t slot,
                                     uint64_t* count) {
  return static_cast<oh_lane_fault>(
      detail::read_signal<detail::DeviceAtomics>(handle, group, slot, count));
}

}  // namespace onehop
