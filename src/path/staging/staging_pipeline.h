// SPDX-License-Identifier: Apache-2.0
//
// StagingPipeline: device memory over links without shared memory. The sender's engine copies
// chunks into pinned buffers while the channel sends earlier ones. The receiver's engine copies
// chunks out while later ones arrive.
//
//   sender    CTS grants bytes ▶ take a buffer ▶ engine ▶ send ▶ return the buffer
//   receiver  take buffers ▶ CTS grants bytes ▶ bytes arrive ▶ engine ▶ return, take, CTS ▶ ...
//
// A transfer takes buffers only when it can proceed: earlier work on its memory is done and, for a
// sender, the receiver has room. So no transfer that holds buffers waits for those of another, and
// one without a buffer waits for its turn.
//
// Threading: guarded by the link's lock; driver calls are made without it.
#pragma once

#include "link/link.h"
#include "path/staging/chunk_copier.h"
#include "path/staging/staging_transfer.h"

namespace oh {

class StagingPipeline {
 public:
  explicit StagingPipeline(Link& link) : link_(link), copier_(link) {}
  ~StagingPipeline();

  bool empty() const { return idle_[0].empty() && idle_[1].empty() && holding_.empty(); }
  // Adds a send that was granted bytes or has to wait for its producer, or a receive whose message
  // was announced as `op`.
  StagedCopy& begin(Request* request, StagingDirection direction, uint64_t op, uint64_t length);

  // Of a send: bytes from `request.moved` on, up to `limit`, that can be sent now. Empty while the
  // engine copies them. Returns the buffers of earlier bytes to the pool.
  ByteView filled(Request& request, uint64_t limit);
  // Of a receive: where `size` bytes at `offset` belong; null if they were not granted.
  static uint8_t* place(const StagedCopy& copy, uint64_t offset, uint64_t size) {
    return transfer_of(copy).place(offset, size);
  }

  bool progress() OH_NO_THREAD_ANALYSIS;
  // The peer has sent a frame for this transfer: it gets the next turn.
  void look_at(StagedCopy& copy);
  // Stops a transfer. It ends once no engine accesses its memory.
  void stop(StagedCopy& copy, Status why);
  // The same for a receive whose message the sender has withdrawn: it then waits for another one.
  void withdraw(StagedCopy& copy);
  // A stopped send or receive that can end now, because its memory is no longer accessed. Null:
  // none.
  Request* next_stopped(StagingDirection direction) {
    return has_stopped(direction) ? stopped(direction) : nullptr;
  }
  bool has_stopped(StagingDirection direction) const {
    return any_stopped_[static_cast<size_t>(direction)];
  }
  // The link has ended: stops all transfers except receives whose bytes have all arrived. False
  // while a local thread works on one or, until the deadline, the engine copies.
  bool stop_all(const Status& status, Deadline engines);
  // Called after stop_all(): ends the receives that the receiver no longer tracks. `whole`: also
  // those whose bytes have all arrived.
  void end_receives(const Status& status, bool whole);
  // Whether a local thread works on a transfer or, until the deadline, the engine copies.
  bool at_work(Deadline engines) const;
  // The link is closed: returns all buffers that are not in use. No thread polls for the others.
  void close();

 private:
  using List = StagingTransfer::List;
  using Step = StagingTransfer::Step;
  // begin() creates no other type.
  static StagingTransfer& transfer_of(StagedCopy& copy) {
    return static_cast<StagingTransfer&>(copy);
  }
  static const StagingTransfer& transfer_of(const StagedCopy& copy) {
    return static_cast<const StagingTransfer&>(copy);
  }
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const List* list : {&holding_, &idle_[0], &idle_[1]}) {
      for (const std::shared_ptr<StagingTransfer>& transfer : *list) visit(*transfer);
    }
  }
  Step next_step(StagingTransfer& transfer) const {
    return transfer.next_step(link_.staging_depth);
  }
  // Each releases the lock meanwhile, and returns whether something happened.
  bool take_step(const std::shared_ptr<StagingTransfer>& held, Step step) OH_NO_THREAD_ANALYSIS;
  bool check(StagingTransfer& transfer);
  bool ask_producer(StagingTransfer& transfer);
  bool take_buffer(StagingTransfer& transfer);
  bool copy_chunk(StagingTransfer& transfer);
  bool take_more(StagingDirection direction) OH_NO_THREAD_ANALYSIS;
  Request* stopped(StagingDirection direction);
  List& idle_of(const StagingTransfer& transfer) {
    return idle_[static_cast<size_t>(transfer.direction)];
  }
  void give_back(const StagingTransfer& transfer, StagingTransfer::Chunk& chunk);
  bool settle(StagingTransfer& transfer);
  void grant(const StagingTransfer& transfer);
  void release_until(StagingTransfer& transfer, uint64_t end);
  bool reap(StagingTransfer& transfer);
  void count_out(StagingTransfer& transfer);
  StagingPool& pool() const { return *link_.staging; }

  Link& link_;
  ChunkCopier copier_;
  List idle_[2];              // without a buffer, by direction
  List holding_;              // with buffers, or about to take one
  size_t turn_ = 0;           // the direction that went first last time
  bool any_stopped_[2] = {};  // by direction
};

}  // namespace oh
