// SPDX-License-Identifier: Apache-2.0
//
// Transfers: operations that copy directly between the two buffers, through a slot of the segment
// (transport/slot.h has the states). The owner posts a slot, the other side claims it; then whoever
// has time copies chunks, the receiver from the front and the sender from the back. Where device
// memory takes part (transfers_device.cc) one side's copy engine moves all of it, or both sides
// work through the relay's pipe (transfers_relay.cc).
//
// Threading: guarded by the pair's lock, but for the copies, which are made without it.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "base/list.h"
#include "base/pool.h"
#include "link/pair.h"

namespace oh {

struct InPostedTransfers;
struct InActiveTransfers;

// One side's view of a slot in use.
struct Transfer : ListNode<InPostedTransfers>, ListNode<InActiveTransfers> {
  TransferSlot* slot = nullptr;
  uint32_t index = 0;
  uint32_t sequence = 0;
  bool owner = false;    // the slot is ours
  bool source = false;   // our buffer is the source
  uint32_t copiers = 0;  // threads of ours that copy right now
  uint32_t lines = 0;    // of the pipes, in the hands of our engine
  uint8_t* local = nullptr;
  uint64_t remote = 0;
  uint64_t length = 0;
  uint64_t chunk = 0;  // bytes a chunk; 0: not decided yet
  oh_path path = OH_PATH_NONE;
  uint8_t* mapped = nullptr;  // their buffer, where it is mapped here
  std::shared_ptr<ImportedBlock> import;
  // Where device memory takes part.
  bool on_device = false;      // either buffer is
  bool local_device = false;   // ours is
  uint32_t remote_memory = 0;  // SlotMemory of their buffer
  uint32_t remote_block = 0;
  CopyMode mode = CopyMode::kUndecided;
  cuda::Stream stream = nullptr;  // of what we have enqueued; null: the worker's
  bool flying = false;            // our engine copies: DONE comes from the device
  int64_t looked = 0;             // when it was begun, or last asked for errors
  Request* request = nullptr;     // nullptr once it has ended without the transfer
  Status failure;                 // why our side ended it
};

// Hears that the other side has claimed a posted slot: the request waits for no message any more.
class ClaimListener {
 public:
  virtual ~ClaimListener() = default;
  virtual void on_claimed(Request* request) = 0;
};

class Transfers {
 public:
  explicit Transfers(Pair& pair) : pair_(pair) {}
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
  // Whether both sides wait for it now and two copies through the ring, one on each core, are
  // faster than system calls.
  bool prefers_stream(const Request& request, const Offer& offer) const;
  // Whether the request's memory and that buffer can be copied directly.
  bool reachable(const Request& request, const Offer& offer) const;
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
  // Nobody will look any more: what the engine still needs is left to the device's link.
  void leave_rest();
  // Whether our engine is still at memory in that range for a request that has ended.
  bool engine_within(const uint8_t* base, uint64_t length) const;
  // Whether nobody touches a buffer any more that was in doubt when its request ended.
  bool released(const Doubt& doubt, bool peer_is_dead);
  // Not ok: our GPU writes no more words, and nothing that it was to end will.
  Status broken() const {
    return pair_.device && pair_.device->gpu().is_lost() ? pair_.device->gpu().loss() : Status();
  }

  // Whether the engine of the other side's GPU reaches such memory of ours.
  bool is_open(const GpuExport& exported) const;
  // Before something is received into it that may have to be staged: makes our slab, and tells the
  // other side of it. Without the lock.
  void prepare_slab(const GpuExport& sink);

 private:
  // The next thing to do for a transfer with device memory.
  enum class Step { kNothing, kAsk, kShowSlab, kStart, kFill, kCheck };
  // Whether our engine can address their buffer; kLater: their block is on its way.
  enum class Reach { kYes, kNo, kLater };
  // A span of a pipe's lines.
  struct Span {
    uint64_t position = 0;
    uint32_t lines = 0;
    Transfer* transfer = nullptr;  // of which our engine copies
  };

  void activate(Transfer* transfer);
  void describe(const Request& request, uint64_t size, uint32_t* block, uint32_t* memory);
  void enter_active(Transfer* transfer);
  bool copy_some(Transfer* chosen) OH_NO_THREAD_ANALYSIS;
  static uint32_t take_chunks(Transfer& transfer, bool from_back, uint32_t most, uint64_t* offset,
                              uint64_t* size);
  Status copy_chunk(Transfer& transfer, uint64_t offset, uint64_t size);
  void stop(Transfer* transfer, oh_status status);
  static void fail(Transfer& transfer, const Status& status);
  static bool account(Transfer& transfer, uint64_t chunks);
  static bool all_taken(const Transfer& transfer);

  bool work_on_devices(Transfer* focus) OH_NO_THREAD_ANALYSIS;
  Step next_step(Transfer& transfer);
  bool take_step(Transfer& transfer, Step step) OH_NO_THREAD_ANALYSIS;
  Step decide(Transfer& transfer);
  void learn(Transfer& transfer);
  bool set_mode(Transfer& transfer, CopyMode mode);
  Reach reach(Transfer& transfer);
  Reach reach_slab(Transfer& transfer);
  Reach reach_block(Transfer& transfer, uint32_t number, uint64_t address, uint64_t size);
  bool has_slab() const;
  // Runs what may block or takes long without the link's lock; the transfer stays meanwhile.
  template <typename Work>
  auto without_lock(Transfer& transfer, const Work& work) {
    ++transfer.copiers;
    struct Copier {
      ~Copier() { --transfer.copiers; }
      Transfer& transfer;
    } copier{transfer};
    return pair_.without_lock(work);
  }
  bool show_slab(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  bool wants_slab(const GpuExport& sink) const;
  void offer_slab(const std::shared_ptr<const GpuExport>& slab);
  bool is_mappable(const GpuExport& exported) const;
  bool slab_is_reached(Transfer& transfer);
  static bool by_pipe(const Transfer& transfer) {
    return transfer.mode == CopyMode::kRelay || transfer.mode == CopyMode::kStaged;
  }
  void say_slow(const Transfer& transfer);
  void start_engine(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  bool for_worker(const Transfer& transfer) const;
  void give_up_on_device();
  bool may_take_over(const Transfer& transfer) const;
  // Whether nobody can touch the transfer's buffer any more, now that the link is over.
  bool is_over(const Transfer& transfer, bool peer_is_dead) const;
  static bool with_engine(const Transfer& transfer) {
    return transfer.flying || transfer.lines > 0;
  }
  bool check(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  bool check_span(bool fills) OH_NO_THREAD_ANALYSIS;
  Status enqueue_span(bool fills, const Span& span, void* to, const void* from, uint64_t size);

  uint32_t free_lines(const Transfer& transfer);
  bool fill(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  bool drain() OH_NO_THREAD_ANALYSIS;
  bool retire_spans();
  Transfer* sink_of(const PipeSpan& span);
  // Ends the request when the slot says DONE and nobody here copies.
  bool settle(Transfer* transfer);
  void finish(Transfer* transfer, Status status);
  void reclaim();

  Pair& pair_;
  ClaimListener* listener_ = nullptr;
  Pool<Transfer> pool_;
  List<Transfer, InPostedTransfers> posted_;
  List<Transfer, InActiveTransfers> active_;
  std::array<uint32_t, kSlots> sequence_{};
  std::vector<uint32_t> free_;
  std::vector<uint32_t> lingering_;  // done, not yet released by the other side
  size_t device_active_ = 0;         // active transfers with device memory
  uint64_t pipe_filled_ = 0;         // positions taken of the outgoing pipe
  uint64_t pipe_drained_ = 0;        // and of the incoming one
  std::deque<uint64_t> in_pipe_;     // positions of spans of the outgoing one, not seen empty
  std::deque<Span> filling_;         // by our engine
  std::deque<Span> draining_;
  bool said_slow_ = false;
  bool left_ = false;
};

}  // namespace oh
