// SPDX-License-Identifier: Apache-2.0
//
// MessageSelection: how messages travel over one link. Sender, Receiver and Transfers query it at
// their decision points, and explain() combines the same functions. Its inputs are memory kinds,
// sizes and states, never requests. No function allocates, locks or looks anything up.
//
//   sender:    may_be_eager() ──▶ eager, while there is credit
//              offered()      ──▶ ready-to-send, with a transfer slot or without
//   receiver:  ready_to_receive() ──▶ RTR
//   either:    copies_host(), copy_step() ──▶ which side copies, once both buffers are known
//
// Threading: immutable.
#pragma once

#include <cstdint>

#include "link/facts.h"
#include "link/link.h"

namespace oh {

// How local device memory travels over the link.
enum class DeviceWay : uint8_t {
  kNone,
  kSegment,  // engines address the segment or the remote buffer
  kStaging,  // pinned buffers on each side; needs local progress
};

// Whether a ready-to-send or ready-to-receive message names a transfer slot.
enum class SlotUse : uint8_t {
  kNone,
  kIfShared,  // if the memory is in a shared block
  kIfFree,
  kRequired,  // waits for a free slot
  kInPlace,   // over UCX: the channel writes into the posted receive
};

// Whether the CPUs copy directly between two host buffers.
enum class HostCopy : uint8_t { kNever, kIfMapped, kAlways };

// How the claimer of a slot decides to copy a transfer with device memory; or what it must find out
// or wait for first.
enum class CopyStep : uint8_t {
  kReachTheirs,  // find out: can the local engine address the remote buffer?
  kReachSlab,    // find out: can the source's engine address the sink's slab?
  kWait,         // the remote memory is being mapped
  kAwaitEvent,   // wait for earlier work on the local buffer
  kOwner,        // the engine of the slot's owner copies
  kClaimer,      // the claimer's engine copies
  kStaged,       // through the slab
  kRelay,        // through pinned host memory
};
enum class Reach : uint8_t { kUnknown, kYes, kNo, kLater };

// The memory at one end of a transfer with device memory.
struct TransferEnd {
  bool device = false;
  bool open = false;     // the other side's engine may address it
  bool pinned = false;   // host memory that its own side's engine copies at full speed
  bool pending = false;  // earlier work on it is not done
};

// A transfer with device memory, as the claimer of its slot sees it.
struct DeviceCopy {
  bool both = false;           // an engine may reach both
  bool source = false;         // the claimer has the source
  bool by_owner = false;       // the owner's engine copies where both could (CopySide)
  bool open = false;           // the owner's engine may address the claimer's buffer
  bool pending = false;        // earlier work on the claimer's buffer is not done
  bool their_pending = false;  // earlier work on the owner's buffer is not done
  Reach theirs = Reach::kUnknown;
  Reach slab = Reach::kUnknown;
};
CopyStep copy_step(const DeviceCopy& copy);

// How a message travels, once both buffers are known.
enum class Route : uint8_t {
  kEmpty,         // no bytes beside the control message
  kEager,         // sent before its receive is known
  kFrames,        // through the channel, once its receive is known
  kHostCopy,      // one copy, both CPUs copying
  kSourceEngine,  // one copy, by the source's engine
  kTargetEngine,
  kSlab,     // two copies, through the slab on the target's GPU
  kRelay,    // through pinned host memory that both sides map
  kStaging,  // through pinned buffers of each side, where there is no segment
  kNone,
};

class MessageSelection {
 public:
  MessageSelection() = default;
  explicit MessageSelection(const LinkFacts& facts);

  // ---- The sender, before it knows the receive.
  // Only copy engines touch device memory: frames never carry its bytes.
  bool may_be_eager(bool device, uint64_t size) const {
    return size <= eager_max_ && (!device || size == 0);
  }
  // Whether a message of host memory fits into one eager frame.
  bool is_short(uint64_t size) const { return size <= single_frame_ && may_be_eager(false, size); }
  // How a message that is not eager is announced.
  SlotUse offered(bool device, uint64_t size) const;
  // Whether a message of `size` bytes uses a matching ready-to-receive.
  bool uses_rtr(bool device, uint64_t size) const {
    return size > 0 && !may_be_eager(device, size);
  }
  // Whether such a message goes through the staging pipeline.
  bool is_staged(bool device, uint64_t size) const { return device && size > 0 && !segment_; }

  // ---- The receiver.
  SlotUse ready_to_receive(bool device, uint64_t size) const;

  // ---- Either.
  DeviceWay device_way() const { return device_way_; }

  // ---- Either, once both buffers are known.
  // While threads of both sides wait, two copies through the ring, one on each core, are faster
  // than system calls.
  HostCopy copies_host(bool attended) const {
    if (!segment_) return HostCopy::kNever;
    return we_reach_them_ && !(attended && !same_process_) ? HostCopy::kAlways
                                                           : HostCopy::kIfMapped;
  }
  // Whether the peer's engine may address local memory of this kind. `same_gpu`: the memory is on
  // the GPU of both endpoints.
  bool is_open(MemoryKind kind, bool same_gpu) const {
    return is_mappable(kind) || (same_process_ && same_gpu);
  }
  // Whether the peer's engine may address local host memory that is in a shared block.
  bool opens_blocks() const { return segment_ && their_gpu_; }
  // Whether the peer can map local memory of this kind or, within one process, address it. There
  // every engine addresses its own device's memory, but memory of another device only if it comes
  // from cudaMalloc: other allocations have access rights of their own.
  bool is_mappable(MemoryKind kind) const {
    return kind == MemoryKind::kDevice && (same_process_ || maps_devices_);
  }
  // A transfer that this side claims, before it is known what its engine reaches. Host memory is
  // copied by one engine if it is open to that of the device's side, or pinned by its own side.
  DeviceCopy device_copy(const TransferEnd& ours, const TransferEnd& theirs, bool source) const;
  // Whether the peer's engine copies between devices where both could. `source`: this side has the
  // source.
  bool peer_copies(bool source) const {
    return copy_side_ == CopySide::kSource ? !source : copy_side_ == CopySide::kThem;
  }
  // Whether the peer's engine makes all copies that it can. It cannot wait for local events, so a
  // source with a pending event is polled first.
  bool peer_copies_all() const { return copy_side_ == CopySide::kThem; }
  // Whether the source's engine may address a slab on the local GPU.
  bool has_slabs() const { return their_gpu_ && (same_process_ || maps_devices_); }
  // Whether the local GPU's worker may copy from local memory to `target`. `near`: `target` is on
  // the local GPU.
  bool by_worker(MemoryKind target, bool near, uint64_t size) const {
    return size <= worker_max_ && target == MemoryKind::kDevice && (!same_process_ || near);
  }

  // ---- After the transfer.
  // The path of a message that was not copied directly. `eager`: its bytes were sent before its
  // receive was known.
  oh_path framed_path(uint64_t size, bool eager) const {
    return size == 0 || (eager && size <= inline_max_) ? OH_PATH_INLINE : path_;
  }
  // The path of a copy by one engine.
  oh_path engine_path() const { return same_process_ ? OH_PATH_LOCAL : OH_PATH_CUDA_IPC; }

  // ---- The functions above combined, for a message from this side while credit is left.
  // `pending`: earlier work on its source is not done when its receive is posted.
  Route route(MemoryKind source, MemoryKind target, uint64_t size, bool pending) const;
  // The same for a slot with device memory, claimed by the target.
  Route device_route(MemoryKind source, MemoryKind target, bool pending) const;
  // Whether the worker may copy such a message.
  bool route_by_worker(MemoryKind source, MemoryKind target, uint64_t size) const;

 private:
  // The same link, as the peer sees it.
  MessageSelection theirs() const;
  // Whether an engine of one side can address such memory of the other.
  bool reaches(MemoryKind kind) const {
    return kind == MemoryKind::kShared || (kind == MemoryKind::kDevice && peer_access_) ||
           (same_process_ && same_gpu_);
  }
  bool copies_host(MemoryKind source, MemoryKind target, uint64_t size) const;
  // `gpu`: the side that has the memory has a GPU.
  TransferEnd end_of(MemoryKind kind, bool gpu) const;

  oh_path path_ = OH_PATH_NONE;
  bool segment_ = false;
  bool ucx_ = false;
  bool same_process_ = false;
  bool we_reach_them_ = false;
  bool they_reach_us_ = false;
  bool our_gpu_ = false;
  bool their_gpu_ = false;
  bool same_gpu_ = false;
  CopySide copy_side_ = CopySide::kSource;
  bool maps_devices_ = false;
  bool peer_access_ = false;  // engines of one GPU address memory of the other
  DeviceWay device_way_ = DeviceWay::kNone;
  uint64_t single_frame_ = 0;
  uint64_t inline_max_ = 0;
  uint64_t eager_max_ = 0;
  uint64_t their_eager_max_ = 0;
  uint64_t eager_credit_ = 0;
  uint64_t worker_max_ = 0;
};

// Called before local device memory is used over the link. Starts the progress thread if staging
// needs it. If device memory cannot travel over the link: OH_ERR_NOT_VIABLE, or why the GPU cannot
// use the segment.
Status admit_device_memory(Link& link);

}  // namespace oh
