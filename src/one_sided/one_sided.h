// SPDX-License-Identifier: Apache-2.0
//
// One-sided operations: put, get, notifications and signals.
//
// Where one side reaches the other's memory (shared block, process_vm, same process) a put or get
// is a copy by the calling thread, guarded against the region being retired meanwhile. Elsewhere it
// travels as messages, first in, first out, and the target's progress does the copy, or over UCX by
// its remote memory access; a notification or a signal behind them keeps its place.
//
// Threading: copy() takes no lock; everything else is guarded by the pair's lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "device/batch_plan.h"
#include "link/pair.h"
#include "link/regions.h"
#include "path/direct/transfers.h"
#include "path/rma/remote_keys.h"

namespace oh {

class Receiver;
class Sender;

// What one put or get moves.
struct Movement {
  bool put = false;
  std::span<const Block> blocks;  // none is empty
  uint64_t count = 0;             // of blocks, before neighbours became one
  uint64_t bytes = 0;
  BatchPlan* plan = nullptr;  // of a prepared batch, where a kernel copies it
};

// A peer's region, as attached.
struct RemoteTarget {
  uint32_t index = 0;
  uint64_t version = 0;
  uint64_t base = 0;  // address in its owner
  uint64_t length = 0;
  // Where it is mapped here, if it is. The peer's list of imports holds the mapping: a handle that
  // the user keeps must not keep memory which its owner has freed.
  bool imported = false;
  std::weak_ptr<ImportedBlock> import;
  bool on_device = false;
  bool plain = false;  // from cudaMalloc
};

// Our side's memory of a one-sided operation.
struct LocalMemory {
  bool on_device = false;
  bool near = false;         // of the endpoint's device, not managed
  bool for_kernels = false;  // so is all of the operation's memory, and a kernel reaches it
  bool by_worker = false;    // who has copied, once it is done
  After after;
  std::shared_ptr<const GpuExport> exported;  // where the other side may have to map it
};

// A notification that has come.
struct Notification {
  uint64_t peer_id = 0;
  int64_t peer_rank = -1;
  Bytes bytes;
};

// What the target's side needs of its endpoint.
class OneSidedHost {
 public:
  virtual ~OneSidedHost() = default;
  virtual std::shared_ptr<RegionRecord> find_region(uint32_t index, uint64_t version) = 0;
  virtual void notified(Notification notification) = 0;
};

// An operation of ours that travels as messages, or block by block through transfer slots.
struct OneSidedOperation final : UcxSink {
  OpKind kind;
  uint64_t op = 0;  // name of the request, to find it again
  Request* request = nullptr;
  uint32_t region = 0;
  uint64_t version = 0;
  uint64_t base = 0;  // of the region, in its owner
  BlockList list;
  std::span<const Block> blocks;  // of the list
  size_t block = 0;               // next one to push
  uint64_t offset = 0;            // within it
  uint64_t missing = 0;           // bytes of a get that have not come
  Bytes bytes;                    // of a notification
  bool notify = false;            // a put that is followed by a notification once it has ended well
  uint32_t slot = 0;
  uint64_t count = 0;
  // Part by part, whose bytes travel apart from the frames: through slots, or by crossings.
  bool by_slots = false;
  bool by_crossings = false;
  bool on_device = false;  // our memory
  std::shared_ptr<const GpuExport> exported;
  std::vector<Request*> under_way;
  // By UCX's remote memory access.
  std::shared_ptr<RemoteKey> key;
  std::shared_ptr<RmaFlight> flight;
  std::shared_ptr<Flight> flush;  // of a put, behind its last block
  Status failure;
  oh_path path = OH_PATH_NONE;

  bool begun() const { return block > 0 || offset > 0; }
  bool moves() const { return kind == OpKind::kPut || kind == OpKind::kGet; }
  // Whether it ends by what the other side says. Else what is under way ends it, whatever a peer
  // that lies says of it: its name can be guessed.
  bool by_messages() const { return moves() && !by_slots && !key; }
  // A notification whose put has ended, and all before it.
  bool is_released() const { return kind == OpKind::kNotify && notify; }
  // Whether notifications and signals behind it have to wait for it, as its bytes travel apart from
  // the frames.
  bool travels_apart() const { return by_slots || (key && kind == OpKind::kPut); }
  // Of what answers a get.
  uint8_t* place_of(uint32_t number, uint64_t at, uint64_t size) const override {
    bool fits = number < blocks.size() && slice_fits(at, size, blocks[number].size);
    return fits ? blocks[number].local + at : nullptr;
  }
};

class OneSided {
 public:
  static constexpr size_t kMaxNotification = 2048;

  OneSided(Pair& pair, Transfers& transfers, OneSidedHost& host)
      : pair_(pair), transfers_(transfers), host_(host), keys_(pair) {}
  void attach_board(std::shared_ptr<const Board> board) { board_ = std::move(board); }

  // Whether copy() can reach the target; otherwise post().
  bool reaches(const RemoteTarget& target, bool local_on_device) const;
  // Copies all blocks now. Call without the lock.
  Status copy(const RemoteTarget& target, LocalMemory& local, const Movement& movement,
              Deadline deadline) OH_EXCLUDES(pair_.lock);
  // Prepares blocks that kernels may copy. Null: they go one by one at each copy.
  std::unique_ptr<BatchPlan> plan(const RemoteTarget& target, const Movement& movement)
      OH_EXCLUDES(pair_.lock);

  // Whether a thread of ours is inside copy().
  bool copying() const { return copies_.load(std::memory_order_seq_cst) != 0; }

  // Sends the operation as messages; the request ends when the other side says that all is done. A
  // notification given with it comes after it.
  void post(Request* request, const RemoteTarget& target, BlockList blocks, const ByteView* notify);
  // The same for memory on a device that we cannot map: block by block through transfer slots,
  // which the other side claims.
  void post_by_slots(Request* request, const RemoteTarget& target, const LocalMemory& local,
                     BlockList blocks, const ByteView* notify);
  // Without shared memory: in runs of blocks that cross as messages do, by sender and receiver.
  void post_by_crossings(Request* request, const RemoteTarget& target, const LocalMemory& local,
                         BlockList blocks, const ByteView* notify);
  void use(Sender& sender, Receiver& receiver) {
    sender_ = &sender;
    receiver_ = &receiver;
  }
  // Whether nobody is at memory of a region any more for a run that has ended.
  bool all_have_left();
  // Until earlier work on our memory is done.
  Status wait_for_producer(LocalMemory& local, Deadline deadline);
  // A block of such an operation has ended, here or for the other side.
  void block_ended(Request* block);
  // Stops what serves the other side in a region of ours; false while something is under way.
  bool leave(const RegionRecord& region);
  // Sends a notification behind everything before it; the request ends when it is on its way.
  void post_notification(Request* request, ByteView bytes);
  // Counts `count` more on the other side's slot, behind everything before it.
  void signal(uint32_t slot, uint64_t count);
  // Takes `count` signals of the slot, if as many have come.
  bool take_signals(uint32_t slot, uint64_t count);
  uint64_t signals_waiting(uint32_t slot) const;
  // A notification was collected: its credit goes back.
  void give_back(size_t bytes);

  bool progress() { return take_turn(pair_.ucx ? pair_.ucx->depth() : 0); }
  // The link is about to be closed: what was held back by puts that have ended still goes, and
  // nothing that would not end any more begins. True when something has gone.
  bool push_last() { return push_queue(/*moves=*/false); }
  bool idle() const { return queue_.empty() && serving_.empty() && in_rma_ == 0 && keys_.idle(); }
  RemoteKeys& keys() { return keys_; }
  const RemoteKeys& keys() const { return keys_; }
  // Whether the other side has begun with it, where it goes through slots or in runs, or UCX has
  // some of it: too late to be cancelled.
  bool has_begun(const Request& request);
  // False when the request is not one of these, or when what is under way cannot be taken back;
  // `give_up` leaves that in doubt.
  bool cancel(Request* request, const Status& status, bool give_up);
  void fail_all(const Status& status);
  // A region of ours is retired: what works on it stops.
  void retire(const RegionRecord& region);

  Status on_put(const Frame& frame);
  Status on_get(const Frame& frame);
  Status on_data(const Frame& frame);
  Status on_reply(const Frame& frame);
  void on_ack(const Frame& frame);
  void on_abort(const Frame& frame);
  Status on_run_ready(const Frame& frame);
  Status on_notify(const Frame& frame);
  Status on_signal(const Frame& frame);
  Status on_key_wanted(const Frame& frame) {
    return keys_.on_wanted(frame, host_.find_region(frame.region, frame.tag));
  }
  void on_retire_key(const Frame& frame);

 private:
  using Operation = OneSidedOperation;
  // A get of the other side that we answer.
  struct Serving {
    uint64_t op;
    uint64_t block;
    std::shared_ptr<RegionRecord> region;
    uint64_t position;
    uint64_t length;
    uint64_t sent;
  };
  // The put of the other side that is arriving; there is one at a time.
  struct Arriving {
    uint64_t op = 0;
    std::shared_ptr<RegionRecord> region;
    uint64_t position = 0;
    uint64_t length = 0;
    uint64_t received = 0;
    bool flush = false;
    oh_status status = OH_OK;  // of all blocks of this op so far
  };

  // Of a call that posts something, in buffers of UCX's: nobody may make progress for a while.
  static constexpr size_t kPostedAtOnce = 32;
  bool take_turn(size_t buffers);
  bool push_all();
  // Over UCX the buffers that they are packed into are the bound.
  size_t frames_at_once() const { return pair_.ucx ? 4096 : 32; }
  size_t part_of(uint64_t size, uint64_t left) const {
    return pair_.ucx ? pair_.ucx->part_of_list(left) : std::min(left, pair_.channel->part_of(size));
  }
  // A new operation at the end of the queue; progress() begins with it.
  Operation& enqueue(Request* request, const RemoteTarget& target, BlockList blocks,
                     const ByteView* notify);
  Status copy_by_cpu(const RemoteTarget& target, const ImportedBlock* import,
                     const Movement& movement);
  Status copy_by_device(const RemoteTarget& target, const ImportedBlock* import, LocalMemory& local,
                        const Movement& movement);
  bool push_queue(bool moves = true);
  bool push_answers();
  bool push_operation(Operation& operation);
  bool push_put(Operation& operation);
  bool push_get(Operation& operation);
  bool push_notification(Operation& operation);
  bool push_blocks(Operation& operation);
  bool stop_blocks(Operation& operation, const Status& status, bool give_up);
  void give_back_block(Request* block);
  // By UCX's remote memory access, or as messages; kNotYet: its key is on its way.
  enum class Way { kMessages, kRma, kNotYet };
  Way choose_way(Operation& operation);
  bool push_rma(Operation& operation);
  // What one call of progress() has given to UCX: others have their turn.
  struct Turn {
    static constexpr size_t kMostPieces = 64;
    static constexpr uint64_t kMostBytes = 4 << 20;
    size_t pieces = 0;
    uint64_t bytes = 0;
  };
  bool progress_rma();
  bool end_rma(Operation& operation);
  bool stop_rma(Operation& operation, const Status& status, bool give_up);
  void leave_in_doubt(Operation& operation, const Status& status);
  bool must_wait(const Operation& operation) const;
  void notify_behind(Operation& operation);
  void release_notifications();
  Status on_block(const Frame& frame, bool put);
  Request* next_run(Operation& operation);
  bool push_runs(Operation& operation);
  void on_run_ack(Request& run, const Frame& frame);
  bool end_run(Request& run, const Status& status, bool give_up);
  bool stop_run(Request& run, const Status& why);
  void served_run_ended(Request& run);
  Result<Request*> run_of(const Frame& frame, const RegionRecord& region);
  Status on_run(const Frame& frame, bool put);
  bool serve(Serving& serving);
  Status place(const Frame& frame);
  void acknowledge(uint64_t op, oh_status status);
  Operation* find(uint64_t op);
  void end(Operation* operation, Status status);
  void end_request(Operation& operation, Status status);

  Pair& pair_;
  Transfers& transfers_;
  OneSidedHost& host_;
  RemoteKeys keys_;
  size_t in_rma_ = 0;     // of waiting_
  size_t notifying_ = 0;  // of waiting_: puts that have ended, and are to tell so
  Turn turn_;
  bool answers_first_ = false;    // in the next turn
  Pool<Request> blocks_;          // and runs of operations, ours and the other side's
  std::vector<Request*> served_;  // those of the other side
  // What may still be at memory of a region, though its run has ended.
  struct Leaving {
    uint32_t region;
    uint64_t version;
    std::vector<Doubt> doubts;
  };
  std::vector<Leaving> leaving_;
  size_t runs_ = 0;  // of ours that have not ended
  Bytes run_list_;   // of the frame at hand
  Sender* sender_ = nullptr;
  Receiver* receiver_ = nullptr;
  std::shared_ptr<const Board> board_;               // the other side's
  std::deque<std::unique_ptr<Operation>> queue_;     // not all on the wire yet
  std::vector<std::unique_ptr<Operation>> waiting_;  // for the other side's answer
  std::deque<Serving> serving_;
  Arriving arriving_;
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
