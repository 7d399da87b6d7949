// SPDX-License-Identifier: Apache-2.0
//
// StagingPipeline: device memory over links without shared memory. The engine copies chunks into
// pinned buffers while the channel sends those before them; at the other side it copies chunks out
// while the next ones arrive.
//
//   sender   CTS says how far ▶ take a buffer ▶ engine ▶ send ▶ give it back
//   receiver take buffers ▶ CTS says how far ▶ bytes arrive ▶ engine ▶ give them back, take, CTS
//   ...
//
// Buffers are taken only for what can go on by itself: earlier work on the memory is done, and the
// other side has room (sender). So no holder of buffers waits for those of another, and a message
// without one waits for its turn.
//
// Threading: guarded by the link's lock, but for calls to the driver, which are made without it.
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
  // A send that was granted bytes, or has to wait for its producer; or a receive whose message was
  // announced as `op`.
  StagedCopy& begin(Request* request, StagingDirection direction, uint64_t op, uint64_t length);

  // Of a send: what of the bytes from `request.moved` on can be sent, at most to `limit`; none when
  // the engine has yet to copy them. What lies before is given back.
  ByteView filled(Request& request, uint64_t limit);
  // Of a receive: where `size` bytes at `offset` go, null if they were not asked for.
  static uint8_t* place(const StagedCopy& copy, uint64_t offset, uint64_t size) {
    return transfer_of(copy).place(offset, size);
  }

  bool progress() OH_NO_THREAD_ANALYSIS;
  // The other side has sent a frame for it: its turn is next.
  void look_at(StagedCopy& copy);
  // It does not go on, and ends once no engine accesses its memory.
  void stop(StagedCopy& copy, Status why);
  // The same of a receive whose message will not come: it waits for another one then.
  void withdraw(StagedCopy& copy);
  // A send or receive that was stopped and is to end now: its memory is no longer accessed.
  Request* next_stopped(StagingDirection direction) {
    return has_stopped(direction) ? stopped(direction) : nullptr;
  }
  bool has_stopped(StagingDirection direction) const {
    return any_stopped_[static_cast<size_t>(direction)];
  }
  // The end of the link: nothing goes on but receives whose bytes are all here. False while threads
  // of ours are at work, or, until the deadline, the engine.
  bool stop_all(const Status& status, Deadline engines);
  // Afterwards: ends the receives whose message the receiver does not know any more; `whole`: those
  // whose bytes are all here, too.
  void end_receives(const Status& status, bool whole);
  // Whether threads of ours are at work, or, until the deadline, the engine.
  bool at_work(Deadline engines) const;
  // The link is closed: gives back what is free, and no thread polls for the rest.
  void close();

 private:
  using List = StagingTransfer::List;
  using Step = StagingTransfer::Step;
  // begin() makes no others.
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
  // Each releases the lock, and returns whether something happened.
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
  List holding_;              // with some, or about to take one
  size_t turn_ = 0;           // the direction to begin with
  bool any_stopped_[2] = {};  // by direction
};

}  // namespace oh
