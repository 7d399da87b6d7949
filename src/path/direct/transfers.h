// SPDX-License-Identifier: Apache-2.0
//
// Transfers: direct copies between the two buffers of an operation, through a slot of the segment
// (slot_table.h). The owner posts a slot and the peer claims it. Then threads of both sides copy
// chunks, the receiver from the front and the sender from the back. If either buffer is on a
// device, engines copy (device_copies.h).
//
// Threading: guarded by the link's lock; copies run without it.
#pragma once

#include <memory>

#include "base/pool.h"
#include "path/direct/device_copies.h"
#include "path/direct/slot_table.h"
#include "path/direct/transfer.h"

namespace oh {

// Called when the peer has claimed the posted slot of a receive: the receive is matched.
class ClaimListener {
 public:
  virtual ~ClaimListener() = default;
  virtual void on_claimed(Request* request) = 0;
};

class Transfers final : public SpanSinks {
 public:
  explicit Transfers(Link& link) : link_(link), devices_(link, *this) {}
  void start(ClaimListener* listener);

  // Posts a local slot for the request's buffer; nullptr when all slots are in use.
  Transfer* offer(Request* request, bool source);
  // Withdraws a posted slot. False when the peer has claimed it already: the transfer is active
  // then. The peer reads `why`; OH_ERR_PEER_LOST: the link ends.
  bool withdraw(Transfer* transfer, oh_status why = OH_OK);

  using Offer = SlotOffer;
  // Records whether a local thread waits for the request, also in its slot for the peer.
  void attend(Request* request, bool attended);
  // Whether `use` calls for a slot, given the request's memory.
  bool has_use(SlotUse use, const Request& request) const;
  // Whether bytes are copied directly between the request's memory and the offered buffer.
  bool copies(const Request& request, const Offer& offer) const;
  // Claims the offered slot for the request and activates the transfer. False when the owner has
  // withdrawn the slot.
  bool claim(Request* request, bool source, const Offer& offer);
  bool ended_with_link(const Offer& offer) const { return slots_.ended_with_link(offer); }
  // Claims the offered slot only to end it with `status`. False when the owner has withdrawn it.
  bool refuse(const Offer& offer, oh_status status);

  // Polls posted slots for claims: that of `focus`, and some others in turn.
  bool poll(Transfer* focus);
  // Whether the peer has claimed the transfer's slot; activates the transfer if so.
  bool claimed(Transfer* transfer);
  bool has_active() const { return !active_.empty(); }
  bool in_use() const { return !active_.empty() || !posted_.empty(); }
  // Finishes active transfers that are done, and copies some chunks of one. Releases the lock while
  // it copies.
  bool work(Transfer* focus) OH_NO_THREAD_ANALYSIS;
  Transfer* sink_of(const PipeSpan& span) override;

  // Whether a stream can wait for the transfer: its copy is enqueued at an engine and needs no
  // thread.
  bool is_enqueued(const Transfer& transfer) const;
  // Makes a stream wait for such a transfer. Releases the lock for the driver call.
  Status enqueue_wait(Transfer& transfer, cuda::Stream stream) OH_NO_THREAD_ANALYSIS {
    return devices_.enqueue_wait(transfer, stream);
  }

  // Stops an active transfer: no further chunk begins. True when the request has completed; false
  // while a chunk is still in flight.
  bool abandon(Transfer* transfer, const Status& status);
  // The same, but with `give_up` the request completes in doubt while the peer still copies. False:
  // a local thread still copies, or `give_up` is not set.
  bool end(Transfer* transfer, const Status& status, bool give_up);

  // The link has ended. Withdraws posted slots, whose requests the caller completes, and ends
  // active transfers, in doubt where a live peer may still copy. False while a local thread or, for
  // a short time, an engine still copies: call it again.
  bool fail_all(const Status& status, bool peer_is_dead);

  // Called after the end of the link: finishes transfers that engines were copying. True when
  // something happened. May release the lock.
  bool settle_rest();
  // Called when no progress follows: the DeviceLink takes over the mappings that the engine still
  // uses.
  void leave_rest();
  // Whether an engine of either side may still access local memory for a request that has
  // completed; and whether in that range.
  bool left_to_engines();
  bool engine_within(const uint8_t* base, uint64_t length);
  // Whether a buffer that its request left in doubt is no longer accessed.
  bool released(const std::vector<Doubt>& doubts);
  Status broken() const { return devices_.broken(); }
  void prepare_slab(const GpuExport& sink) { devices_.prepare_slab(sink); }

 private:
  bool released(const Doubt& doubt, bool peer_is_dead);
  // Detaches the request, whose buffer stays in doubt because the peer may still copy.
  void orphan(Transfer* transfer);
  void activate(Transfer* transfer);
  SlotBuffer describe(const Request& request, uint64_t size);
  void enter_active(Transfer* transfer);
  bool copy_some(Transfer* chosen) OH_NO_THREAD_ANALYSIS;
  Status copy_chunk(Transfer& transfer, uint64_t offset, uint64_t size);

  // Whether nothing accesses the transfer's buffer any more, because the link or the peer has
  // ended.
  bool is_over(const Transfer& transfer, bool peer_is_dead) const;
  bool left_to_engine(const Transfer& transfer) const;
  // Finishes the transfer if its slot is DONE and no local thread copies.
  bool settle(Transfer* transfer);
  void finish(Transfer* transfer, Status status);

  Link& link_;
  SlotTable slots_;
  DeviceCopies devices_;
  ClaimListener* listener_ = nullptr;
  Pool<Transfer> pool_;
  List<Transfer, InPostedTransfers> posted_;
  List<Transfer, InActiveTransfers> active_;
  size_t device_active_ = 0;  // active transfers with device memory
  bool left_ = false;
};

}  // namespace oh
