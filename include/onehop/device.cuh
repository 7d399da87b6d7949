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
// A handle comes from oh_peer_device_handle (Python: peer.device_handle(lane)). Arguments stay the
// same from launch to launch, and in graphs that are replayed: the lane knows how far it is. Send k
// of one side meets receive k of the other, per lane; of each lane one group at a time may send,
// and one receive. What fits into the lane's ring is sent without waiting for the receiver.
//
// A kernel that sends or receives many messages takes the lane once:
//
//   onehop::SendLane lane(handle, block);
//   for (...) lane.send(data, bytes);
//   oh_lane_fault fault = lane.close();
//
// The end of its scope closes it, too, which is a call of the whole group like any other.
//
// Functions return OH_LANE_OK or what became of the operation; every wait ends, at the handle's
// timeout at the latest. After a fault beyond OH_LANE_RANGE that half of the lane takes no more
// until it is reset (oh_peer_reset_lane).
//
// Threading: all threads of the group call alike, with the same arguments.
// Ownership: the handle and the memory are the caller's. Needs sm_70; clusters need sm_90.
#pragma once

#include "onehop/detail/coop_group.cuh"
#include "onehop/detail/grid.cuh"
#include "onehop/detail/groups.cuh"
#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "onehop/detail/signal.h"

namespace onehop {

// The sending half of a lane in the hands of a group, from its making until close().
template <typename Group>
class SendLane {
  static_assert(detail::kOneTeam<Group>, "a grid sends by send(), as often as it likes");

 public:
  __device__ SendLane(const oh_lane_handle& handle, Group& group)
      : sender_(handle, group), group_(group) {
    taken_ = sender_.take(group);
  }
  SendLane(const oh_lane_handle&&, Group&) = delete;  // the handle outlives it
  SendLane(const SendLane&) = delete;
  SendLane& operator=(const SendLane&) = delete;
  // A lane that its kernel has left open would be busy until it is reset.
  __device__ ~SendLane() { close(); }
  // `data` may be written again behind the group's next barrier, or its next call here.
  __device__ oh_lane_fault send(const void* data, uint64_t bytes) {
    if (taken_) sender_.send(group_, data, bytes);
    return fault();
  }
  __device__ oh_lane_fault close() {
    if (taken_) sender_.give(group_);
    taken_ = false;
    return fault();
  }
  // What the calling thread knows; all of the group's do once it is closed.
  __device__ oh_lane_fault fault() const { return static_cast<oh_lane_fault>(sender_.half.fault); }

 private:
  detail::Sender<detail::DeviceAtomics> sender_;
  Group& group_;
  bool taken_;
};

// The receiving half.
template <typename Group>
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
  // Afterwards the bytes are visible to all threads of the group.
  // A large message goes there directly if it is all within the target (oh_peer_lane_target).
  __device__ oh_lane_fault recv(void* data, uint64_t capacity, const oh_lane_target& target = {}) {
    if (taken_) {
      receiver_.receive(group_, data, capacity, detail::place_in(target, data, capacity));
    }
    return fault();
  }
  // Whether the next message has begun to arrive: then recv() waits for nothing but its rest. Never
  // waits, so it never times out; but when the host ends the lane, fault() becomes
  // OH_LANE_ABORTED after at most 1,024 calls:
  //   while (!lane.probe() && lane.fault() == OH_LANE_OK) work();
  __device__ bool probe() {
    constexpr uint32_t kLook = detail::LaneLimits::kLook;
    return taken_ && receiver_.probe(group_, ++probes_ % kLook == 0);
  }
  // Bytes of the message that came last, or that probe() found; more than the capacity of its
  // receive if that was too small.
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
  detail::Receiver<detail::DeviceAtomics> receiver_;
  Group& group_;
  bool taken_;
  uint32_t probes_ = 0;
};

// One message.
template <typename Group>
__device__ oh_lane_fault send(const oh_lane_handle& handle, Group& group, const void* data,
                              uint64_t bytes) {
  detail::Sender<detail::DeviceAtomics> sender(handle, group);
  if (sender.take(group, bytes)) {
    sender.send(group, data, bytes, true);
    sender.give(group);
  }
  return static_cast<oh_lane_fault>(sender.half.fault);
}

// `received` may be null; else it gets the bytes of the message.
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

// Receives a message, and sends it on by another lane; it stays in `data`, too.
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

// Copies into memory of the peer. Seen there behind a signal or flush that follows.
template <typename Group>
__device__ oh_lane_fault put(const oh_remote_memory& remote, uint64_t offset, Group& group,
                             const void* data, uint64_t bytes) {
  if (offset > remote.size || bytes > remote.size - offset) return OH_LANE_RANGE;
  group.sync();
  group.copy(reinterpret_cast<uint8_t*>(remote.base + offset), static_cast<const uint8_t*>(data),
             bytes);
  return OH_LANE_OK;
}

// Copies out of memory of the peer. Afterwards the bytes are visible to all threads of the group:
// what the peer wrote before a signal that the group has waited for, or older bytes of its memory.
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

// Orders all that the group has put or stored before against all that its thread of rank 0 stores
// afterwards, at every GPU and the host: who sees the one sees the other. For flags of your own;
// signal() needs none.
template <typename Group>
__device__ void flush(Group& group) {
  static_assert(detail::kOneTeam<Group>, "each block of a grid flushes its own puts");
  group.sync();
  if (group.leads()) detail::DeviceAtomics::fence();
  group.sync();
}

// Signals: each side of a link has 64 slots with a count each. The peer adds to a count, waits
// subtract from it. Any number of groups signal, wait and read at once, on the same slot too. A
// slot that does not exist: OH_LANE_RANGE.

// Adds to the peer's count of a slot, behind everything that the group has put before.
template <typename Group>
__device__ oh_lane_fault signal(const oh_lane_handle& handle, Group& group, uint32_t slot,
                                uint64_t count = 1) {
  const bool done = detail::signal<detail::DeviceAtomics>(handle, group, slot, count);
  return done ? OH_LANE_OK : OH_LANE_RANGE;
}

// Sets the peer's count of a slot likewise, to the number of a step for instance. For a slot that
// one group at a time signals, and from which no wait() subtracts.
template <typename Group>
__device__ oh_lane_fault set_signal(const oh_lane_handle& handle, Group& group, uint32_t slot,
                                    uint64_t count) {
  static_assert(detail::kOneTeam<Group>, "one block of a grid sets a signal");
  const bool done = detail::set_signal<detail::DeviceAtomics>(handle, group, slot, count);
  return done ? OH_LANE_OK : OH_LANE_RANGE;
}

// Adds to the peer's count of a slot, in no order with what the group has put or stored, nor with
// its other signals: no fence, and no barrier. For counts that say nothing of memory, and for
// several signals behind one flush().
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

// Waits until the count of a slot is `count` or more, and subtracts that. Then what the peer put
// before is visible to all of the group. A wait that fails subtracts nothing.
template <typename Group>
__device__ oh_lane_fault wait(const oh_lane_handle& handle, Group& group, uint32_t slot,
                              uint64_t count = 1) {
  return static_cast<oh_lane_fault>(
      detail::wait_signal<detail::DeviceAtomics>(handle, group, slot, count));
}

// Returns when all ranks of the communicator have called it, on the same slot: what each of them
// put before is visible to the group then. Uses a signal of that slot to each other rank; nothing
// else may. After a fault (a rank that did not come in time, or was lost) the ranks take another
// slot, for they may differ in what they have counted.
template <typename Group>
__device__ oh_lane_fault barrier(const oh_comm_handle& comm, Group& group, uint32_t slot) {
  static_assert(detail::kOneTeam<Group>,
                "one block of a grid calls it, between barriers of the grid");
  return static_cast<oh_lane_fault>(detail::barrier<detail::DeviceAtomics>(comm, group, slot));
}

// Waits likewise, and subtracts nothing: many groups may wait for the same signal.
template <typename Group>
__device__ oh_lane_fault wait_until(const oh_lane_handle& handle, Group& group, uint32_t slot,
                                    uint64_t least) {
  return static_cast<oh_lane_fault>(
      detail::wait_until_signal<detail::DeviceAtomics>(handle, group, slot, least));
}

// Reads the count of a slot into `*count`, for each thread its own, without waiting. What the peer
// put before the signals that are counted is visible to all of the group. OH_LANE_ABORTED: the host
// ended all waits, the count may grow no more.
template <typename Group>
__device__ oh_lane_fault read_signal(const oh_lane_handle& handle, Group& group, uint32_t slot,
                                     uint64_t* count) {
  return static_cast<oh_lane_fault>(
      detail::read_signal<detail::DeviceAtomics>(handle, group, slot, count));
}

}  // namespace onehop
