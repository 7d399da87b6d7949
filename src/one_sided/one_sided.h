// SPDX-License-Identifier: Apache-2.0
//
// OneSided: puts, gets, notifications and signals of one link. Selection says which path a put or
// get takes. An immediate path copies on the calling thread, guarded against the region being
// retired meanwhile. Other operations are queued, first in, first out; a notification or a signal
// keeps its place behind them.
//
//   queue_ ──▶ path->push() ... all is pushed ──▶ waiting_ ──▶ moved() ──▶ its notification, or end
//
// Threading: move() and plan() take the lock themselves; everything else is guarded by it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "device/batch_plan.h"
#include "one_sided/notifications.h"
#include "path/path.h"
#include "path/selection.h"

namespace oh {

// A put or get as it is called for.
struct Move {
  const RemoteTarget& target;
  const void* data = nullptr;  // the local memory of all blocks
  uint64_t size = 0;
  AfterOption after = {};
  Movement movement = {};
  BlockList list = nullptr;               // holds the blocks; null: they are gone with the call
  const ByteView* notify = nullptr;       // null: none
  Deadline deadline = Deadline::never();  // for earlier work on the local memory
  LocalBuffer* located = nullptr;         // where that is, if it has been asked
};

class OneSided final : public PathEvents {
 public:
  static constexpr size_t kMaxNotification = 2048;

  OneSided(Link& link, Notifications& notifications, const RegionTable& regions)
      : link_(link), notifications_(notifications), regions_(regions) {}
  // Before the link is used: makes its paths.
  void open(Transfers& transfers, RunStreams& streams, RmaUse rma_use);
  // And what it can do then.
  void open(const LinkFacts& facts, std::shared_ptr<const Board> board);
  // Null: the link has it not.
  Path* path(PathName name) const { return paths_[index(name)].get(); }

  // Carries a put or get out: its request has ended, or ends through progress. A notification given
  // with it comes after it. On failure nothing was posted.
  Status move(Request* request, const Move& move) OH_EXCLUDES(link_.lock);
  // Prepares blocks that are moved often. Null: they go one by one at each move.
  Result<std::unique_ptr<BatchPlan>> plan(const Move& move) OH_EXCLUDES(link_.lock);
  // Sends a notification behind everything before it; the request ends when it is on its way.
  void post_notification(Request* request, ByteView bytes);
  // Counts `count` more on the other side's slot, behind everything before it.
  void signal(uint32_t slot, uint64_t count);
  // Takes `count` signals of the slot, if as many have come.
  bool take_signals(uint32_t slot, uint64_t count);
  uint64_t signals_waiting(uint32_t slot) const;
  // A notification was collected: its credit goes back.
  void give_back(size_t bytes);

  bool progress() { return take_turn(link_.ucx ? link_.ucx->packer().depth() : 0); }
  bool idle() const;
  // The link is about to be closed: what was held back by puts that have ended still goes, and
  // nothing that would not end any more begins. True when something has gone.
  bool push_last() { return push_queue(/*moves=*/false); }
  // Whether a thread of ours is inside an immediate path.
  bool copying() const { return copies_.load(std::memory_order_seq_cst) != 0; }
  // Whether the other side has begun with it, or UCX has some of it: too late to be cancelled.
  bool has_begun(const Request& request);
  // False when the request is not one of these, or when what is under way cannot be taken back;
  // `give_up` leaves that in doubt.
  bool cancel(Request* request, const Status& status, bool give_up);
  void fail_all(const Status& status);

  // A region of ours is retired: what works on it stops.
  void retire(const RegionRecord& region);
  // Whether nothing of the link is in such a region any more.
  bool leave(const RegionRecord& region);
  // Whether nobody is at memory of a region any more for an operation that has ended.
  bool all_have_left();

  Status on_frame(const Frame& frame);
  void moved(Operation& operation, Status status) override;

 private:
  // Of a call that posts something, in buffers of UCX's: nobody may make progress for a while.
  static constexpr size_t kPostedAtOnce = 32;
  static size_t index(PathName name) { return static_cast<size_t>(name); }
  static Ends ends_of(const RemoteTarget& target, const LocalBuffer& local);
  static bool travels_apart(const Operation& operation);
  Path* choose(const Ends& ends, uint64_t size) const;
  Status copy(Path& path, LocalBuffer& local, const Move& move, oh_path* taken);
  Status copy_now(Path* path, LocalBuffer& local, Request* request, const Move& move);
  Status enqueue(Path& path, const Ends& ends, LocalBuffer& local, Request* request,
                 const Move& move);
  Operation& append(OpKind kind, Request* request);
  bool take_turn(size_t buffers);
  bool push_all();
  bool push_queue(bool moves = true);
  bool push(Operation& operation);
  bool push_notification(Operation& operation);
  bool answer();
  bool progress_paths();
  bool begin(Operation& operation);
  bool must_wait(const Operation& operation) const;
  void notify_behind(Operation& operation);
  void release_notifications();
  void end(Operation& operation, Status status);
  Operation* find(uint64_t op);
  Status on_answer(const Frame& frame);
  Status on_notify(const Frame& frame);
  Status on_signal(const Frame& frame);

  Link& link_;
  Notifications& notifications_;
  const RegionTable& regions_;
  std::unique_ptr<const Selection> selection_;
  std::array<std::unique_ptr<Path>, kPathCount> paths_;
  std::vector<Path*> working_;                       // those of them that have work of their own
  std::shared_ptr<const Board> board_;               // the other side's
  std::deque<std::unique_ptr<Operation>> queue_;     // not all is pushed yet
  std::vector<std::unique_ptr<Operation>> waiting_;  // for their end, in the order of posting
  size_t notifying_ = 0;        // of waiting_: puts that have ended, and are to tell so
  bool answers_first_ = false;  // in the next turn
  std::atomic<uint32_t> copies_{0};
  // Notifications have a credit of their own, as large as that of messages.
  static uint64_t notification_charge(uint64_t bytes) { return std::max<uint64_t>(bytes, 64); }
  static uint64_t notification_credit(const Limits& limits) {
    return std::max<uint64_t>(limits.eager_credit, 2 * kMaxNotification);
  }
  uint64_t notification_charge_ = 0;  // of those on their way to the other side's user
  uint64_t notifications_held_ = 0;   // of those that our user has not collected
  std::array<uint64_t, kSignals> signals_by_message_{};
  std::array<uint64_t, kSignals> signals_taken_{};
};

}  // namespace oh
