// SPDX-License-Identifier: Apache-2.0
//
// OneSided: puts, gets, notifications and signals of one link. Selection chooses the path of a put
// or get. An immediate path copies on the calling thread (ImmediateCopies), or in slices on threads
// that make progress (BackgroundCopies). Other operations are queued in FIFO order; a notification
// or a signal keeps its place behind them.
//
//   queue_ ──▶ path->push() ... all is pushed ──▶ waiting_ ──▶ moved() ──▶ its notification, or end
//
// A batch over several regions is queued as one operation per part, each with a request of its own,
// followed by one for the whole, which completes and notifies when the last part has completed.
//
// Threading: move(), plan() and copy_slice() take the link's lock, has_slice() needs none,
// everything else is guarded by it.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "base/pool.h"
#include "one_sided/background_copies.h"
#include "one_sided/immediate_copies.h"
#include "one_sided/move.h"
#include "one_sided/notification_parts.h"
#include "one_sided/signal_counts.h"
#include "path/selection.h"

namespace oh {

class OneSided final : public PathEvents, private PieceOwner {
 public:
  OneSided(Link& link, Notifications& notifications, const RegionTable& regions)
      : link_(link),
        regions_(regions),
        copies_(link),
        notification_parts_(link, notifications),
        signals_(link) {}
  // Called before the link is used: creates its paths.
  void open(Transfers& transfers, RunStreams& streams, RmaUse rma_use);
  // Called once the link's capabilities are known.
  void open(const LinkFacts& facts, std::shared_ptr<const ControlPage> page);
  // Null: not viable on this link.
  Path* path(PathName name) const { return paths_[index(name)].get(); }

  // Starts a put or get. On return the request has completed, or progress completes it later. Its
  // notification is delivered after its bytes. On failure nothing was posted.
  Status move(Request* request, const Move& move) OH_EXCLUDES(link_.lock);
  // Prepares a batch that is posted repeatedly. Null: each move handles the blocks one by one.
  Result<std::unique_ptr<BatchPlan>> plan(const Move& move) OH_EXCLUDES(link_.lock);
  // Sends a notification, ordered after all earlier operations. The request completes when it is
  // sent.
  void post_notification(Request* request, ByteView bytes);
  // Adds `count` to the peer's signal slot, ordered after all earlier operations.
  void signal(uint32_t slot, uint64_t count);
  // The signals received from the peer.
  SignalCounts& signals() { return signals_; }
  // The user has collected a notification: returns its credit.
  void give_back(size_t bytes) { notification_parts_.collected(bytes); }

  bool progress() { return take_turn(link_.ucx ? link_.ucx->packer().depth() : 0); }
  bool idle() const {
    return queue_.empty() && (!background_ || background_->idle()) &&
           std::ranges::all_of(working_, [](Path* path) { return path->idle(); });
  }
  // Copies a slice of a background operation. False: there was none to copy.
  bool copy_slice() OH_EXCLUDES(link_.lock) { return background_ && background_->copy_slice(); }
  // Called before the link is closed: pushes notifications and signals that waited for puts, and
  // begins no put or get. True when something was pushed.
  bool push_last() { return push_queue(/*moves=*/false); }
  // Whether a background slice is ready to be copied. Any thread.
  bool has_slice() const { return background_ && background_->has_slice(); }
  const ImmediateCopies& copies() const { return copies_; }
  // Whether a local thread copies by an immediate path.
  bool copying() const { return copies_.busy() || (background_ && background_->busy()); }
  // Whether the peer has begun the operation, or UCX holds a part of it: too late to cancel.
  bool has_begun(const Request& request);
  // Cancels a request with `status`. False: it is not a one-sided operation in the queue, or a part
  // in flight cannot be revoked; with `give_up` its buffer is left in doubt instead. Releases the
  // lock while a thread copies a slice.
  bool cancel(Request* request, const Status& status, bool give_up);
  void fail_all(const Status& status);

  // A local region is retired: stops the work on it.
  void retire(const RegionRecord& region);
  // Stops the peer's operations on a retired region. True once none of this link accesses it.
  bool leave(const RegionRecord& region);
  // Whether no path accesses a region any more on behalf of operations that have ended.
  bool all_have_left();

  Status on_frame(const Frame& frame);
  void moved(Operation& operation, Status status) override;

 private:
  // UCX buffers that a posting call may fill, as the next progress may come late.
  static constexpr size_t kPostedAtOnce = 32;
  static size_t index(PathName name) { return static_cast<size_t>(name); }
  static Ends ends_of(const RemoteTarget& target, const LocalBuffer& local);
  static bool travels_apart(const Operation& operation);
  Result<ChosenPart> choose(const MovePart& part, LocalBuffer& local, uint64_t bytes) const;
  Status move_parts(Request* request, const Move& move);
  Result<std::vector<ChosenPart>> choose_all(const Move& move,
                                             std::vector<LocalBuffer>* locals) const;
  Status end_now(Request* request, const Move& move, std::span<const ChosenPart> copied);
  void count(std::span<const ChosenPart> copied, const Request& request, int64_t now);
  bool copies_now(const ChosenPart& chosen, const Move& move) const;
  Status enqueue(std::span<const ChosenPart> chosen, Request* request, const Move& move);
  Operation& append(OpKind kind, Request* request);
  Operation& append_move(const ChosenPart& chosen, Request* request);
  Request* part_of(const Request& whole, uint64_t bytes);
  void piece_ended(Request* part) override;
  bool cancel_parts(Operation& whole, const Status& status, bool give_up);
  bool take_turn(size_t buffers);
  bool push_all();
  bool push_queue(bool moves = true);
  bool push(Operation& operation);
  bool answer();
  bool progress_paths();
  bool begin(Operation& operation);
  bool must_wait(const Operation& operation) const;
  void notify_behind(Operation& operation);
  void release_notifications();
  void end(Operation& operation, Status status);
  Operation* find(uint64_t op);
  Status on_answer(const Frame& frame);

  Link& link_;
  const RegionTable& regions_;
  std::unique_ptr<const Selection> selection_;
  std::array<std::unique_ptr<Path>, kPathCount> paths_;
  std::vector<Path*> working_;                    // paths whose works() is true
  std::deque<std::unique_ptr<Operation>> queue_;  // not fully pushed yet
  std::vector<std::unique_ptr<Operation>>
      waiting_;                 // fully pushed, not completed; in the order of posting
  size_t notifying_ = 0;        // entries of waiting_ whose put is done, whose notification is not
  bool answers_first_ = false;  // answers precede pushes in the next turn
  ImmediateCopies copies_;
  std::unique_ptr<BackgroundCopies> background_;
  NotificationParts notification_parts_;
  Pool<Request> part_requests_;  // of batches over several regions
  bool failing_ = false;         // fail_all() is ending everything
  SignalCounts signals_;
};

}  // namespace oh
