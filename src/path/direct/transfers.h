// SPDX-License-Identifier: Apache-2.0
//
// Transfers: operations that copy directly between the two buffers, through a slot of the segment
// (transport/slot.h has the states). The owner posts a slot, the other side claims it; then any
// side that has time copies chunks, the receiver from the front and the sender from the back. Where
// device memory takes part (transfers_device.cc) one side's copy engine moves all of it, or both
// sides work through the relay's pipe (pipe.h).
//
// Threading: guarded by the link's lock, but for the copies, which are made without it.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/pool.h"
#include "path/direct/pipe.h"
#include "path/direct/transfer.h"
#include "path/message_selection.h"

namespace oh {

// Hears that the other side has claimed a posted slot: the request waits for no message any more.
class ClaimListener {
 public:
  virtual ~ClaimListener() = default;
  virtual void on_claimed(Request* request) = 0;
};

class Transfers final : public SpanSinks {
 public:
  explicit Transfers(Link& link) : link_(link), pipe_(link, *this) {}
  void start(ClaimListener* listener);

  // Posts a slot of ours for the request's buffer; nullptr when all are in use.
  Transfer* offer(Request* request, bool source);
  // Takes a posted slot back: false when the other side has claimed it already (it is active then).
  // `why` is for the other side: OH_ERR_PEER_LOST, the link ends.
  bool withdraw(Transfer* transfer, oh_status why = OH_OK);

  // What the other side posted, and what became of claiming it.
  struct Offer {
    uint32_t slot = 0;
    uint32_t sequence = 0;
    uint64_t remote = 0;
    uint32_t block = 0;
    uint64_t length = 0;
  };
  // Whether a thread of ours waits for the request: tells the other side.
  void attend(Request* request, bool attended);
  // Whether a slot is of use for the request's memory.
  bool has_use(SlotUse use, const Request& request) const;
  // Whether the request's memory and that buffer are copied directly.
  bool copies(const Request& request, const Offer& offer) const;
  // Claims it for the request and starts to copy; false when it was cancelled.
  bool claim(Request* request, bool source, const Offer& offer);
  // Whether its owner took it back because the link ends: the message is lost, not withdrawn.
  bool ended_with_link(const Offer& offer) const;
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
  // What a slot says of a request's memory.
  uint32_t memory_of(const Request& request) const;

  // The deadline of an active transfer's request has passed: no further chunk begins. True when the
  // request could be ended with `status`; false when a chunk of the other side is still under way.
  bool abandon(Transfer* transfer, const Status& status);
  // Lets go of the request although the other side may still copy.
  void orphan(Transfer* transfer);

  // The link is gone: posted slots are withdrawn (their requests are the caller's to end), active
  // transfers end, in doubt where a living peer may still copy. True when nothing is left; false
  // while a thread of ours copies.
  bool fail_all(const Status& status, bool peer_is_dead);

  size_t free_slots() const { return free_.size(); }
  // After the link: what engines were at ends; true when something has.
  bool settle_rest();
  // No progress follows: what the engine still needs is left to the device's link.
  void leave_rest();
  // Whether our engine is still at memory in that range for a request that has ended.
  bool engine_within(const uint8_t* base, uint64_t length) const;
  // Whether a buffer that was in doubt when its request ended is no longer accessed.
  bool released(const std::vector<Doubt>& doubts);
  // Not ok: our GPU writes no more words, and nothing that it was to end will.
  Status broken() const {
    return link_.device && link_.device->gpu().is_lost() ? link_.device->gpu().loss() : Status();
  }

  // Before something is received into it that may have to be staged: makes our slab, and tells the
  // other side of it. Without the lock.
  void prepare_slab(const GpuExport& sink);

 private:
  bool released(const Doubt& doubt, bool peer_is_dead);
  // The next thing to do for a transfer with device memory.
  enum class Step { kNothing, kAsk, kShowSlab, kStart, kFill, kCheck };
  void activate(Transfer* transfer);
  void describe(const Request& request, uint64_t size, uint32_t* block, uint32_t* memory);
  void enter_active(Transfer* transfer);
  bool copy_some(Transfer* chosen) OH_NO_THREAD_ANALYSIS;
  Status copy_chunk(Transfer& transfer, uint64_t offset, uint64_t size);

  bool work_on_devices(Transfer* focus) OH_NO_THREAD_ANALYSIS;
  Step next_step(Transfer& transfer);
  bool take_step(Transfer& transfer, Step step) OH_NO_THREAD_ANALYSIS;
  Step decide(Transfer& transfer);
  // Whether our engine can address their buffer; kLater: their block is on its way.
  Reach reach(Transfer& transfer);
  Reach reach_slab(Transfer& transfer);
  Reach reach_block(Transfer& transfer, uint32_t number, uint64_t address, uint64_t size);
  bool has_slab() const;
  bool show_slab(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  bool wants_slab(const GpuExport& sink) const;
  void offer_slab(const std::shared_ptr<const GpuExport>& slab);
  MemoryKind kind_of(const GpuExport& exported) const;
  // Whether the engine of the other side's GPU reaches such memory of ours.
  bool is_open(const GpuExport& exported) const;
  bool slab_is_reached(Transfer& transfer);
  void say_slow(const Transfer& transfer);
  void start_engine(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  bool for_worker(const Transfer& transfer) const;
  void give_up_on_device();
  bool may_take_over(const Transfer& transfer) const;
  // Whether the transfer's buffer is no longer accessed, now that the link is over.
  bool is_over(const Transfer& transfer, bool peer_is_dead) const;
  bool check(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  // Ends the request when the slot says DONE and no thread here copies.
  bool settle(Transfer* transfer);
  void finish(Transfer* transfer, Status status);
  void reclaim();

  Link& link_;
  Pipe pipe_;
  ClaimListener* listener_ = nullptr;
  Pool<Transfer> pool_;
  List<Transfer, InPostedTransfers> posted_;
  List<Transfer, InActiveTransfers> active_;
  std::array<uint32_t, kSlots> sequence_{};
  std::vector<uint32_t> free_;
  std::vector<uint32_t> lingering_;  // done, not yet released by the other side
  size_t device_active_ = 0;         // active transfers with device memory
  bool said_slow_ = false;
  bool left_ = false;
};

}  // namespace oh
