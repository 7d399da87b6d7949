// SPDX-License-Identifier: Apache-2.0
//
// DeviceCopies: transfers with device memory. The claimer decides which side copies (copy_step()).
// Between a device and a shared block of host memory it is the engine of the device's side; between
// a device and pinned host memory, which is mapped nowhere else, the engine of the host's side.
// Either that side's engine copies everything at once and then writes DONE into the slot, or both
// sides work through a pipe. The GPU's worker may make a small copy instead of the engine; the slot
// looks the same.
//
// clang-format off
//                       claimer reaches the owner's buffer, which is ready
//   UNDECIDED ──┬──▶ ENGINE OF CLAIMER ──▶ start ──▶ engine copies ──▶ DONE, by the device
//               ├──▶ ENGINE OF OWNER   ──▶ the same by the owner; RELAY if it cannot map the buffer;
//               │                          the claimer copies if the owner does not begin
//               ├──▶ STAGED            ──▶ pipe.h; RELAY if the source cannot map the slab
//               └──▶ RELAY             ──▶ pipe.h
// clang-format on
//
// A step is chosen under the lock and executed without it: driver calls are never made under the
// lock.
//
// Threading: guarded by the link's lock, except the steps.
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

  // Drains the pipe and advances one of the active transfers by a step. Releases the lock
  // meanwhile.
  bool work(Active& active, Transfer* focus) OH_NO_THREAD_ANALYSIS;
  // Counts the copies that the local engine has finished. Once the device is lost, fails all of
  // them.
  void retire(Active& active);
  bool retire() { return pipe_.retire(); }
  // Queries the driver about a transfer's copy. True when the device is lost, or when a copy that
  // was only partly enqueued is over.
  bool check(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  // See Transfers.
  bool is_enqueued(const Transfer& transfer) const;
  Status enqueue_wait(Transfer& transfer, cuda::Stream stream) OH_NO_THREAD_ANALYSIS;
  // Not ok: the local GPU is lost. It writes no more words, so its copies never complete by
  // themselves.
  Status broken() const {
    return link_.device && link_.device->gpu().is_lost() ? link_.device->gpu().loss() : Status();
  }

  // The SlotMemory flags of a request's memory. `block`: the shared block that it is in, as the
  // peer knows it; 0: none, or within one process.
  uint32_t memory_of(const Request& request, uint32_t block) const;
  // Called before a receive into `sink` that may have to be staged: creates the local slab and
  // publishes it to the peer. Called without the lock.
  void prepare_slab(const GpuExport& sink);

 private:
  // The next step of a transfer.
  enum class Step { kNothing, kAsk, kShowSlab, kStart, kFill, kCheck };
  Step next_step(Transfer& transfer);
  bool take_step(Transfer& transfer, Step step) OH_NO_THREAD_ANALYSIS;
  Step decide(Transfer& transfer);
  bool may_take_over(const Transfer& transfer) const;
  // Whether the local engine can address the remote buffer. kLater: its block is being imported.
  Reach reach(Transfer& transfer);
  Reach reach_slab(Transfer& transfer);
  // `device`: the block is a device's.
  Reach reach_block(Transfer& transfer, uint32_t number, uint64_t address, uint64_t size,
                    bool device);
  bool has_slab() const;
  bool show_slab(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  bool wants_slab(const GpuExport& sink) const;
  void offer_slab(const std::shared_ptr<const GpuExport>& slab);
  bool slab_is_reached(Transfer& transfer);
  MemoryKind kind_of(const GpuExport& exported) const;
  // Whether the peer's engine may address such local memory.
  bool is_open(const GpuExport& exported) const;
  void pin_host(const Transfer& transfer);
  void start_engine(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  bool for_worker(const Transfer& transfer) const;
  void say_slow(const Transfer& transfer);

  Link& link_;
  Pipe pipe_;
  bool said_slow_ = false;
};

}  // namespace oh
