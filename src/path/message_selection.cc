// SPDX-License-Identifier: Apache-2.0
#include "path/message_selection.h"

#include <utility>

#include "path/choice.h"

namespace oh {

CopyStep copy_step(const DeviceCopy& copy) {
  if (copy.both) {
    if (copy.by_owner && copy.open && !copy.pending) return CopyStep::kOwner;
    if (!copy.their_pending) {
      if (copy.theirs == Reach::kUnknown) return CopyStep::kReachTheirs;
      if (copy.theirs == Reach::kLater) return CopyStep::kWait;
      if (copy.theirs == Reach::kYes) return CopyStep::kClaimer;
    }
    // The owner's engine cannot wait for the claimer's events.
    if (copy.open) return copy.pending ? CopyStep::kAwaitEvent : CopyStep::kOwner;
    if (copy.pending && !copy.source) return CopyStep::kAwaitEvent;
    if (copy.slab == Reach::kUnknown) return CopyStep::kReachSlab;
    if (copy.slab == Reach::kLater) return CopyStep::kWait;
    if (copy.slab == Reach::kYes) return CopyStep::kStaged;
  }
  return copy.pending && !copy.source ? CopyStep::kAwaitEvent : CopyStep::kRelay;
}

namespace {

DeviceWay way_of(const LinkFacts& facts) {
  if (!facts.our_gpu || !facts.why_no_device.empty()) return DeviceWay::kNone;
  return facts.segment ? DeviceWay::kSegment : DeviceWay::kStaging;
}

}  // namespace

MessageSelection::MessageSelection(const LinkFacts& facts)
    : path_(bulk_path(facts)),
      segment_(facts.segment),
      ucx_(facts.ucx),
      same_process_(facts.same_process),
      we_reach_them_(facts.we_reach_them),
      they_reach_us_(facts.they_reach_us),
      our_gpu_(facts.our_gpu),
      their_gpu_(facts.their_gpu),
      same_gpu_(facts.same_gpu),
      copy_side_(facts.copy_side),
      maps_devices_(facts.maps_devices),
      peer_access_(facts.same_process || facts.why_no_peer_access.empty()),
      device_way_(way_of(facts)),
      single_frame_(facts.single_frame),
      inline_max_(facts.granted_inline),
      eager_max_(facts.eager_max),
      their_eager_max_(facts.their_eager_max),
      eager_credit_(facts.eager_credit),
      worker_max_(facts.worker_max) {}

SlotUse MessageSelection::offered(bool device, uint64_t size) const {
  if (!segment_ || size == 0) return SlotUse::kNone;
  if (device) return SlotUse::kRequired;
  // A receive into device memory uses a slot, whatever memory the sender has.
  return their_gpu_ || they_reach_us_ ? SlotUse::kIfFree : SlotUse::kIfShared;
}

SlotUse MessageSelection::ready_to_receive(bool device, uint64_t size) const {
  if (size == 0) return SlotUse::kNone;
  // Messages of at most the inline size go through the inbox anyway.
  if (ucx_) return !device && size > inline_max_ ? SlotUse::kInPlace : SlotUse::kNone;
  // A small message from host memory is eager; one from a device never is.
  if (!segment_ || (!device && size <= their_eager_max_)) return SlotUse::kNone;
  return device || they_reach_us_ ? SlotUse::kIfFree : SlotUse::kIfShared;
}

MessageSelection MessageSelection::theirs() const {
  MessageSelection mirrored = *this;
  std::swap(mirrored.we_reach_them_, mirrored.they_reach_us_);
  std::swap(mirrored.our_gpu_, mirrored.their_gpu_);
  std::swap(mirrored.eager_max_, mirrored.their_eager_max_);
  if (copy_side_ != CopySide::kSource) {
    mirrored.copy_side_ = copy_side_ == CopySide::kUs ? CopySide::kThem : CopySide::kUs;
  }
  return mirrored;
}

// The receiver claims the slot of the ready-to-send message, or the sender claims that of the
// ready-to-receive message.
bool MessageSelection::copies_host(MemoryKind source, MemoryKind target, uint64_t size) const {
  auto names_slot = [](SlotUse use, MemoryKind kind) {
    return use == SlotUse::kIfFree || (use == SlotUse::kIfShared && kind == MemoryKind::kShared);
  };
  auto reaches = [](HostCopy copy, MemoryKind kind) {
    return copy == HostCopy::kAlways ||
           (copy == HostCopy::kIfMapped && kind == MemoryKind::kShared);
  };
  const MessageSelection peer = theirs();
  const bool by_them = names_slot(offered(/*device=*/false, size), source) &&
                       reaches(peer.copies_host(/*attended=*/false), source);
  const bool by_us = names_slot(peer.ready_to_receive(/*device=*/false, size), target) &&
                     reaches(copies_host(/*attended=*/false), target);
  return by_them || by_us;
}

Route MessageSelection::route(MemoryKind source, MemoryKind target, uint64_t size,
                              bool pending) const {
  if (size == 0) return Route::kEmpty;
  if (on_device(source) && device_way_ == DeviceWay::kNone) return Route::kNone;
  if (may_be_eager(on_device(source), size) && eager_charge(size) <= eager_credit_) {
    return Route::kEager;
  }
  if (is_staged(on_device(source) || on_device(target), size)) return Route::kStaging;
  if (on_device(source) || on_device(target)) return device_route(source, target, pending);
  return copies_host(source, target, size) ? Route::kHostCopy : Route::kFrames;
}

DeviceCopy MessageSelection::device_copy(const TransferEnd& ours, const TransferEnd& theirs,
                                         bool source) const {
  DeviceCopy copy;
  copy.source = source;
  copy.open = ours.open;
  copy.pending = ours.pending;
  copy.their_pending = theirs.pending;
  copy.both = ours.device && theirs.device;
  copy.by_owner = peer_copies(source);
  if (copy.both) return copy;
  copy.slab = Reach::kNo;
  const TransferEnd& host = ours.device ? theirs : ours;
  copy.both = host.open || host.pinned;
  copy.by_owner = host.open ? theirs.device : ours.device;
  copy.open = copy.by_owner && ours.open;
  return copy;
}

TransferEnd MessageSelection::end_of(MemoryKind kind, bool gpu) const {
  TransferEnd end;
  end.device = on_device(kind);
  end.open = end.device ? is_open(kind, same_gpu_) : kind == MemoryKind::kShared;
  end.pinned = kind == MemoryKind::kPinned && gpu;
  return end;
}

Route MessageSelection::device_route(MemoryKind source, MemoryKind target, bool pending) const {
  TransferEnd from = end_of(source, device_way_ == DeviceWay::kSegment);
  from.pending = pending && from.device;
  DeviceCopy copy = theirs().device_copy(end_of(target, their_gpu_), from, /*source=*/false);
  for (;;) {
    switch (copy_step(copy)) {
      case CopyStep::kReachTheirs:
        copy.theirs = reaches(source) ? Reach::kYes : Reach::kNo;
        break;
      case CopyStep::kReachSlab:
        copy.slab = theirs().has_slabs() && peer_access_ ? Reach::kYes : Reach::kNo;
        break;
      case CopyStep::kOwner:
        return reaches(target) ? Route::kSourceEngine : Route::kRelay;
      case CopyStep::kClaimer:
        return Route::kTargetEngine;
      case CopyStep::kStaged:
        return Route::kSlab;
      case CopyStep::kWait:
      case CopyStep::kAwaitEvent:
      case CopyStep::kRelay:
        return Route::kRelay;
    }
  }
}

Status admit_device_memory(Link& link) {
  switch (link.selection->device_way()) {
    case DeviceWay::kSegment:
      return {};
    case DeviceWay::kStaging:
      link.serve();
      return {};
    case DeviceWay::kNone:
      break;
  }
  if (!link.why_no_device.ok()) return link.why_no_device;
  return error(OH_ERR_NOT_VIABLE,
               "no path takes device memory to %s: this endpoint is for host memory; create it "
               "with a device",
               link.name.c_str());
}

bool MessageSelection::route_by_worker(MemoryKind source, MemoryKind target, uint64_t size) const {
  return size > 0 && on_device(source) && by_worker(target, same_gpu_, size) &&
         device_route(source, target, /*pending=*/false) == Route::kSourceEngine;
}

}  // namespace oh
