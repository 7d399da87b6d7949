// SPDX-License-Identifier: Apache-2.0
//
// DeviceCopies: transfers with device memory. The claimer decides who copies (copy_step()), and
// that side's engine copies all of it at once and writes DONE into the slot behind the bytes, or
// both sides work through a pipe. A small copy may be made by the GPU's worker instead of its
// engine; the slot looks the same.
//
// clang-format off
//                       claimer reaches the owner's buffer, which is ready
//   UNDECIDED ──┬──▶ ENGINE OF CLAIMER ──▶ start ──▶ engine copies ──▶ DONE, by the device
//               ├──▶ ENGINE OF OWNER   ──▶ the same there; RELAY if it cannot map our buffer; here
//               │                          after all, if it does not begin
//               ├──▶ STAGED            ──▶ pipe.h; RELAY if the source cannot map the slab
//               └──▶ RELAY             ──▶ pipe.h
// clang-format on
//
// A step is chosen under the lock and taken without it: no driver call is made under the lock.
//
// Threading: guarded by the link's lock, but for the steps.
#pragma once

#include <memory>

#include "path/direct/pipe.h"
#include "path/direct/transfer.h"
#include "path/message_selection.h"

namespace oh {

class DeviceCopies {
 public:
  using Active = List<Transfer, InActiveTransfers>;
  DeviceCopies(Link& link, SpanSinks& sinks) : link_(link), pipe_(link, sinks) {}

  // Takes a step of one of the active transfers. Releases and takes the lock.
  bool work(Active& active, Transfer* focus) OH_NO_THREAD_ANALYSIS;
  // Counts what our engine is through with; all of it, as failed, once the device is lost.
  void retire(Active& active);
  bool retire() { return pipe_.retire(); }
  // Asks how the engine is doing with a transfer.
  bool check(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  // See Transfers.
  bool is_enqueued(const Transfer& transfer) const;
  Status enqueue_wait(Transfer& transfer, cuda::Stream stream) OH_NO_THREAD_ANALYSIS;
  // Not ok: our GPU writes no more words, and what it was to end never ends.
  Status broken() const {
    return link_.device && link_.device->gpu().is_lost() ? link_.device->gpu().loss() : Status();
  }

  // What a slot says of a request's memory.
  uint32_t memory_of(const Request& request) const;
  // Before something is received into it that may have to be staged: makes our slab, and tells the
  // other side of it. Without the lock.
  void prepare_slab(const GpuExport& sink);

 private:
  // The next thing to do for a transfer.
  enum class Step { kNothing, kAsk, kShowSlab, kStart, kFill, kCheck };
  Step next_step(Transfer& transfer);
  bool take_step(Transfer& transfer, Step step) OH_NO_THREAD_ANALYSIS;
  Step decide(Transfer& transfer);
  bool may_take_over(const Transfer& transfer) const;
  // Whether our engine can address their buffer; kLater: their block is on its way.
  Reach reach(Transfer& transfer);
  Reach reach_slab(Transfer& transfer);
  Reach reach_block(Transfer& transfer, uint32_t number, uint64_t address, uint64_t size);
  bool has_slab() const;
  bool show_slab(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  bool wants_slab(const GpuExport& sink) const;
  void offer_slab(const std::shared_ptr<const GpuExport>& slab);
  bool slab_is_reached(Transfer& transfer);
  MemoryKind kind_of(const GpuExport& exported) const;
  // Whether the engine of the other side's GPU reaches such memory of ours.
  bool is_open(const GpuExport& exported) const;
  void start_engine(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  bool for_worker(const Transfer& transfer) const;
  void say_slow(const Transfer& transfer);

  Link& link_;
  Pipe pipe_;
  bool said_slow_ = false;
};

}  // namespace oh
