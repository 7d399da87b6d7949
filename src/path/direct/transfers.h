// SPDX-License-Identifier: Apache-2.0
//
// Transfers: operations that copy directly between the two buffers, through a slot of the segment
// (slot_table.h). The owner posts a slot, the other side claims it; then any side that has time
// copies chunks, the receiver from the front and the sender from the back. Where device memory
// takes part, engines copy (device_copies.h).
//
// Threading: guarded by the link's lock, but for the copies, which are made without it.
#pragma once

#include <memory>

#include "base/pool.h"
#include "path/direct/device_copies.h"
#include "path/direct/slot_table.h"
#include "path/direct/transfer.h"

namespace oh {

// Hears that the other side has claimed a posted slot: the request waits for no message any more.
class ClaimListener {
 public:
  virtual ~ClaimListener() = default;
  virtual void on_claimed(Request* request) = 0;
};

class Transfers final : public SpanSinks {
 public:
  explicit Transfers(Link& link) : link_(link), devices_(link, *this) {}
  void start(ClaimListener* listener);

  // Posts a slot of ours for the request's buffer; nullptr when all are in use.
  Transfer* offer(Request* request, bool source);
  // Takes a posted slot back: false when the other side has claimed it already (it is active then).
  // `why` is for the other side: OH_ERR_PEER_LOST, the link ends.
  bool withdraw(Transfer* transfer, oh_status why = OH_OK);

  using Offer = SlotOffer;
  // Whether a thread of ours waits for the request: tells the other side.
  void attend(Request* request, bool attended);
  // Whether a slot is of use for the request's memory.
  bool has_use(SlotUse use, const Request& request) const;
  // Whether the request's memory and that buffer are copied directly.
  bool copies(const Request& request, const Offer& offer) const;
  // Claims it for the request and starts to copy; false when it was cancelled.
  bool claim(Request* request, bool source, const Offer& offer);
  bool ended_with_link(const Offer& offer) const { return slots_.ended_with_link(offer); }
  // Claims it only to end it with `status`; false when it was cancelled.
  bool refuse(const Offer& offer, oh_status status);

  // Notices claims of posted slots: of `focus`, and of some others in turn.
  bool poll(Transfer* focus);
  // Whether a posted slot of ours has been claimed since it was posted; activates it if so.
  bool claimed(Transfer* transfer);
  bool has_active() const { return !active_.empty(); }
  bool in_use() const { return !active_.empty() || !posted_.empty(); }
  // Copies some chunks of one active transfer. Releases and takes the lock.
  bool work(Transfer* focus) OH_NO_THREAD_ANALYSIS;
  Transfer* sink_of(const PipeSpan& span) override;

  // Whether a stream can wait for the transfer: an engine has its copy, and no thread is needed.
  bool is_enqueued(const Transfer& transfer) const;
  // Lets a stream wait for such a transfer, by the driver. Releases and takes the lock.
  Status enqueue_wait(Transfer& transfer, cuda::Stream stream) OH_NO_THREAD_ANALYSIS {
    return devices_.enqueue_wait(transfer, stream);
  }

  // The deadline of an active transfer's request has passed: no further chunk begins. True when the
  // request could be ended with `status`; false when a chunk of the other side is still under way.
  bool abandon(Transfer* transfer, const Status& status);
  // The same; with `give_up` the request ends in doubt while the other side copies. False: a thread
  // of ours does, or it may end soon.
  bool end(Transfer* transfer, const Status& status, bool give_up);

  // The link is gone: posted slots are withdrawn (their requests are the caller's to end), active
  // transfers end, in doubt where a living peer may still copy. True when nothing is left; false
  // while a thread of ours copies.
  bool fail_all(const Status& status, bool peer_is_dead);

  // After the link: what engines were at ends; true when something has.
  bool settle_rest();
  // No progress follows: what the engine still needs is left to the device's link.
  void leave_rest();
  // Whether our engine is still at memory in that range for a request that has ended.
  bool engine_within(const uint8_t* base, uint64_t length) const;
  // Whether a buffer that was in doubt when its request ended is no longer accessed.
  bool released(const std::vector<Doubt>& doubts);
  Status broken() const { return devices_.broken(); }
  void prepare_slab(const GpuExport& sink) { devices_.prepare_slab(sink); }

 private:
  bool released(const Doubt& doubt, bool peer_is_dead);
  // Lets go of the request although the other side may still copy.
  void orphan(Transfer* transfer);
  void activate(Transfer* transfer);
  SlotBuffer describe(const Request& request, uint64_t size);
  void enter_active(Transfer* transfer);
  bool copy_some(Transfer* chosen) OH_NO_THREAD_ANALYSIS;
  Status copy_chunk(Transfer& transfer, uint64_t offset, uint64_t size);

  // Whether the transfer's buffer is no longer accessed, now that the link is over.
  bool is_over(const Transfer& transfer, bool peer_is_dead) const;
  // Ends the request when the slot says DONE and no thread here copies.
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
