// SPDX-License-Identifier: Apache-2.0
//
// StagingPipeline: device memory over links without shared memory. The engine copies chunks into
// pinned buffers while the channel sends those before them; at the other side it copies chunks out
// while the next ones come.
//
//   sender   CTS says how far ▶ take a buffer ▶ engine ▶ send ▶ give it back
//   receiver take buffers ▶ CTS says how far ▶ bytes come ▶ engine ▶ give them back, take, CTS ...
//
// Buffers are taken only for what can go on by itself: earlier work on the memory is done, and the
// other side has room (sender). So no holder of buffers waits for those of another, and a message
// without one waits for its turn.
//
// Threading: guarded by the link's lock, but for calls to the driver, which are made without it.
#pragma once

#include "link/link.h"

namespace oh {

class StagingPipeline {
 public:
  explicit StagingPipeline(Link& link) : link_(link) {}
  ~StagingPipeline();

  bool empty() const { return idle_[0].empty() && idle_[1].empty() && holding_.empty(); }
  // A send that was let go, or has to wait for its producer; or a receive whose message was
  // announced as `op`.
  StagingTransfer& begin(Request* request, StagingDirection direction, uint64_t op,
                         uint64_t length);

  // Of a send: what of the bytes from `request.moved` on can be sent, at most to `limit`; none when
  // the engine has yet to copy them. What lies before is given back.
  ByteView filled(Request& request, uint64_t limit);
  // Of a receive: where `size` bytes at `offset` go, null if they were not asked for.
  uint8_t* place(StagingTransfer& transfer, uint64_t offset, uint64_t size) const;

  bool progress() OH_NO_THREAD_ANALYSIS;
  // The other side has said something of it.
  void look_at(StagingTransfer& transfer);
  // It does not go on, and ends once no engine is at its memory.
  void stop(StagingTransfer& transfer, Status why);
  // The same of a receive whose message will not come: it waits for another one then.
  void withdraw(StagingTransfer& transfer);
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
  // Afterwards: the receives that the receiver knows nothing of any more; or those, too.
  void end_receives(const Status& status, bool whole);
  // Whether threads of ours are at work, or, until the deadline, the engine.
  bool at_work(Deadline engines);
  // The link is closed: what can be given back is, and no thread polls for the rest.
  void close();

 private:
  using List = StagingTransfer::List;
  static constexpr int kMostLists = 16;  // what finds none is the engine's
  template <typename Visit>
  void for_each(Visit visit) {
    for (const List* list : {&holding_, &idle_[0], &idle_[1]}) {
      for (const std::shared_ptr<StagingTransfer>& transfer : *list) visit(*transfer);
    }
  }
  // What a transfer can do next.
  enum class Step { kNothing, kCopy, kCheck, kAskProducer, kTake };
  Step next_step(StagingTransfer& transfer);
  bool take_step(const std::shared_ptr<StagingTransfer>& held, Step step) OH_NO_THREAD_ANALYSIS;
  Request* stopped(StagingDirection direction);
  bool take_more(StagingDirection direction) OH_NO_THREAD_ANALYSIS;
  List& idle_of(const StagingTransfer& transfer) {
    return idle_[static_cast<size_t>(transfer.direction)];
  }
  uint64_t may_begin(const StagingTransfer& transfer) const;
  // Enqueues the copies of a chunk, and its word behind them.
  Status copy(StagingTransfer& transfer, StagingTransfer::Chunk& chunk);
  Status launch(const StagingTransfer& transfer, StagingTransfer::Chunk& chunk);
  void take_list(const StagingTransfer& transfer, StagingTransfer::Chunk& chunk);
  void make_list(StagingTransfer::Chunk& chunk);
  bool is_for_kernel(const Request& request) const;
  void give_back(const StagingTransfer& transfer, StagingTransfer::Chunk& chunk);
  bool settle(StagingTransfer& transfer);
  void grant(const StagingTransfer& transfer);
  void release_until(StagingTransfer& transfer, uint64_t end);
  void close(StagingTransfer& transfer);
  bool reap(StagingTransfer& transfer);
  void count_out(StagingTransfer& transfer);
  static bool is_whole(const StagingTransfer& transfer);
  StagingPool& pool() const { return *link_.staging; }

  Link& link_;
  std::vector<std::unique_ptr<BatchBuffer>> lists_;  // idle
  std::atomic<int> lists_left_{kMostLists};          // that may be made; far below 0: none can be
  List idle_[2];                                     // without a buffer, by direction
  List holding_;                                     // with some, or about to take one
  size_t turn_ = 0;                                  // the direction to begin with
  bool any_stopped_[2] = {};                         // by direction
};

}  // namespace oh
