// SPDX-License-Identifier: Apache-2.0
//
// Link: the state that the parts of a peer (sender, receiver, transfers, one-sided operations)
// share: the channel, the limits, the state of the link, and how a request ends.
//
//   OPEN ──▶ LOST (the peer died, closed the link, or violated the protocol)
//     └────▶ CLOSED (by this side)
//
// Threading: guarded by `lock`, which LinkGuard takes. LinkGuard rings the doorbells that are due
// after it has released the lock.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/fault.h"
#include "base/sync.h"
#include "device/device_link.h"
#include "link/completions.h"
#include "link/connection.h"
#include "link/flight_recorder.h"
#include "link/imports.h"
#include "link/op_table.h"
#include "link/outbox.h"
#include "link/posted_times.h"
#include "link/request.h"
#include "link/staged_copy.h"
#include "link/stats.h"
#include "link/trace.h"
#include "memory/control_page.h"
#include "memory/import_cache.h"
#include "memory/staging_pool.h"
#include "transport/mover.h"
#include "transport/shm/ring_channel.h"
#include "transport/shm/segment.h"
#include "transport/socket/socket_channel.h"
#include "transport/ucx/ucx_channel.h"

namespace oh {

class AnySource;
class MemoryExchange;
class MessageSelection;

struct Limits {
  uint64_t max_inline = 0;
  uint64_t eager_max = 0;
  uint64_t eager_credit = 0;
  // The same limits over UCX.
  uint64_t ucx_eager_max = 0;
  uint64_t ucx_eager_credit = 0;
  uint32_t max_pending = 0;
};

// Eager credit that a message of `size` bytes holds until a receive takes it.
inline uint64_t eager_charge(uint64_t size) { return size < 64 ? 64 : (size + 63) & ~uint64_t{63}; }

// Services that the layers above a link provide to it.
class LinkOwner {
 public:
  // Starts the endpoint's progress thread: no local thread waits for this work.
  virtual void serve() = 0;
  // Starts the progress thread of the peer's endpoint, which is in this process.
  virtual void serve_there() = 0;
  // Schedules progress on posted work for which no thread may wait. With the lock held.
  virtual void posted() = 0;
  // Makes progress on all parts, `focus` first. With the lock held. True when something happened.
  virtual bool progress_locked(Request* focus) = 0;

 protected:
  ~LinkOwner() = default;
};

class Link {
 public:
  // `owner` outlives the link; `connection` is null within the process.
  Link(LinkOwner& owner, Completions& completions, Connection* connection)
      : owner_(&owner), completions_(&completions), connection_(connection) {}

  SpinLock lock;
  Peer* peer = nullptr;
  std::string name;  // of the peer, for texts
  uint64_t id = 0;   // of the peer; unique in the process
  int64_t rank = -1;

  // How the two sides are connected.
  oh_path path = OH_PATH_NONE;  // of all messages that are not inline
  std::unique_ptr<Segment> segment;
  std::unique_ptr<Channel> channel;
  RingChannel* ring = nullptr;        // the channel, where there is a segment
  RingChannel* short_ring = nullptr;  // the same, where short messages may skip the request
  UcxChannel* ucx = nullptr;          // the channel, over UCX
  CountedCredit* counted = nullptr;   // the channel, where there is no segment
  std::unique_ptr<Mover> mover;       // copies from and to the peer's memory; may be null
  bool they_reach_us = false;         // the peer has a mover, too
  const MessageSelection* selection = nullptr;  // chooses how messages travel
  Imports imports;
  MemoryExchange* memory = nullptr;      // how the two sides map each other's memory
  Status why_no_device;                  // not ok: no path carries device memory over this link
  bool maps_devices = true;              // each side may map the other's device memory
  bool same_gpu = false;                 // both endpoints are on one GPU
  std::unique_ptr<DeviceLink> device;    // null: no GPU; destroyed before the segment
  std::shared_ptr<cuda::Gpu> gpu;        // of the endpoint; null: host memory only
  std::shared_ptr<StagingPool> staging;  // bounce buffers; null: no GPU
  uint32_t staging_depth = 0;            // bounce buffers that one message uses at once
  Doorbell* my_bell = nullptr;
  Doorbell* their_bell = nullptr;

  Limits mine;
  Limits theirs;
  uint64_t granted_inline = 0;  // largest inline message: as requested, limited by the channel
  Outbox outbox;
  AnySource* any_source = nullptr;
  Stats stats;
  FlightRecorder flight;
  // Null: operations are not traced. Otherwise every operation of the application has a request,
  // even a small message: the fast path is closed.
  Trace* trace = nullptr;
  // Post times of the operations in flight; null: they are not published (ONEHOP_TOP).
  std::unique_ptr<PostedTimes> posted_times;

  // Operations that the peer refers to by ID; sends that have not ended.
  OpTable<Request> ops;
  uint32_t pending_sends = 0;

  bool wake_me = false;
  bool wake_them = false;
  // The peer is dead or unreachable: no thread copies from or to its memory any more.
  std::atomic<bool> gone{false};
  // The peer has closed the link by a Bye: it did not fail.
  std::atomic<bool> said_goodbye{false};
  // Whether any work needs progress. Written under the lock.
  std::atomic<bool> busy{false};

  // Whether the link is open, and why not. The state is written under the lock.
  enum class State : int { kOpen, kLost, kClosed };
  State state() const { return state_.load(std::memory_order_relaxed); }
  bool is_open() const { return state() == State::kOpen; }
  // Any thread. acquire: pairs with set_lost(); why_ does not change afterwards.
  Status usable() const {
    return state_.load(std::memory_order_acquire) == State::kOpen ? Status() : why_unusable();
  }
  // The first reason counts. With the lock held.
  void set_lost(const Status& why);
  // Returns the previous state. With the lock held.
  State set_closed();
  // How to connect again, for error texts.
  std::string remedy() const;

  // Whether the process that the mover accesses is still the peer's. Any thread, without the lock.
  Status still_there() const;
  // Any thread. Whether the peer has hung up or died: its threads do not access local memory any
  // more.
  bool peer_is_dead() const { return connection_ && connection_->peer_is_dead(); }
  // Any thread. Whether the peer's process has ended, and with it the work of its copy engines.
  bool process_is_dead() const { return connection_ && connection_->process_is_dead(); }
  bool within_process() const { return !connection_; }
  void hang_up() {
    if (connection_) connection_->break_off();
  }
  // Makes the watcher thread progress this link.
  void wake_watcher() {
    if (connection_) connection_->look_again();
  }

  void serve() { owner_->serve(); }
  // Asks the peer, once, to run its progress thread: the target's progress must not depend on its
  // calls. Any thread, without the lock.
  Status ask_to_serve();
  void posted() { owner_->posted(); }
  bool progress_locked(Request* focus) { return owner_->progress_locked(focus); }
  // Takes the lock and makes progress. Any thread.
  bool make_progress();
  void count_polled(int change) { completions_->count_polled(change); }

  // Keeps the peer alive, and with it the segment. Null while the peer is being destroyed.
  std::shared_ptr<Peer> keep_alive() const { return holder_.lock(); }
  // Must be called before the link is used.
  void bind(std::weak_ptr<Peer> holder) { holder_ = std::move(holder); }

  // Whether a received frame waits to be handled; over UCX, as of the last progress.
  bool has_frames() const { return ring ? ring->ready() : ucx && ucx->ready(); }
  // Ends a request whose buffer UCX or a copy engine may still access: with OH_ERR_IN_DOUBT if so,
  // else with `status`.
  void leave_in_doubt(Request& request, const Status& status);

  // The error of a one-sided operation that the peer refused.
  Status refusal(oh_status code) const {
    return error(code, "%s refused the one-sided operation: %s", name.c_str(), status_text(code));
  }

  bool push(const Frame& frame) {
    wake_them = true;
    return channel->push(frame);
  }
  void send(const Frame& frame) {
    wake_them = true;
    outbox.send(frame);
  }

  static constexpr uint64_t kTimedBytes = 128 * 1024;

  // Local address of the peer's memory [remote, remote + size); null unless its block is mapped.
  // `holder` keeps it mapped.
  uint8_t* mapped(uint32_t block, uint64_t remote, uint64_t size,
                  std::shared_ptr<ImportedBlock>* holder) {
    if (block == 0) return nullptr;
    *holder = imports.find(block);
    return *holder ? (*holder)->translate(remote, size) : nullptr;
  }

  // Runs `work`, which may block or take long, with the lock released. With the lock held.
  template <typename Work>
  auto without_lock(const Work& work) {
    struct Unlocked {
      explicit Unlocked(SpinLock& held) : lock(held) { lock.unlock(); }
      ~Unlocked() { lock.lock(); }
      SpinLock& lock;
    } unlocked(lock);
    return work();
  }

  // Whether operations of this size are timed: only where they take microseconds, so that reading
  // the clock is cheap. Any thread, without the lock.
  bool is_timed(uint64_t bytes) const { return bytes >= kTimedBytes || !segment || gpu; }
  // Begins to trace a request of the application, before it is posted.
  void note_post(Request& request) const {
    if (trace && !request.internal && !request.posted_at) trace->begin(request, name.c_str());
  }
  // Ends the trace of a request that ends.
  void note_end(Request& request) const { trace->end(id, request); }
  // The posting call is about to return. With the lock held.
  void note_posted(Request& request) {
    if (request.ended()) return;
    request.counted = true;
    ++stats.outstanding;
    if (posted_times) posted_times->add(request, now_ns());
    if (request.began) request.posting = now_ns() - request.began;
  }
  // Stores the times of a request that ends now, and adds those of a success to the metrics. A
  // request that only the calling thread knows needs no lock.
  void observe(Request& request, int64_t now) const;

  // Ends a request. The library does not touch it afterwards.
  void finish(Request& request, Status status) {
    request.phase = Phase::kEnded;
    request.status = std::move(status);
    request.peer_id = id;
    request.peer_rank = rank;
    // Reading the clock takes longer than a small message.
    const bool timed = request.path != OH_PATH_INLINE || !request.status.ok();
    const int64_t now = timed ? now_ns() : 0;
    flight.note(request.kind, request.path, request.tag, request.size, request.status.code(), now);
    if (request.began && now) observe(request, now);
    if (request.posted_at) note_end(request);
    uncount(request);
    request.transfer = nullptr;
    if (request.staged) std::exchange(request.staged, nullptr)->request = nullptr;
    request.in_flight.reset();
    if (request.op) ops.remove(std::exchange(request.op, 0));
    if (request.kind == OpKind::kSend) --pending_sends;
    end(request);
  }
  // Ends a receive whose message was one short frame. always_inline: a call would add 1% to the
  // instructions of a small message.
  [[gnu::always_inline]] void finish_short(Request& request, oh_path taken, uint64_t tag,
                                           uint64_t length) {
    tell_short(request, taken, tag, length);
    stats.count(MetricOp::kRecv, request.path, length);
    uncount(request);
    flight.note(request.kind, request.path, tag, length);
    end(request);
  }
  // Ends the request of a short message that completed while the request was being posted. Only the
  // calling thread knows the request, so the lock is not needed.
  void finish_posted(Request& request, oh_path taken, uint64_t tag, uint64_t length) const {
    tell_short(request, taken, tag, length);
    request.peer = peer;
    request.done.store(1, std::memory_order_relaxed);
  }

 private:
  void tell_short(Request& request, oh_path taken, uint64_t tag, uint64_t length) const {
    request.phase = Phase::kEnded;
    request.plain = true;
    request.peer_id = id;
    request.peer_rank = rank;
    request.path = taken;
    request.nbytes = length;
    request.message_tag = tag;
  }
  void uncount(Request& request) {
    if (!std::exchange(request.counted, false)) return;
    stats.outstanding -= 1;
    if (posted_times) posted_times->remove(request);
  }
  void end(Request& request) {
    wake_me = true;
    // Pairs with Requests::arm(), which takes the lock after it has set `armed`.
    const uint32_t armed = request.armed.load(std::memory_order_seq_cst);
    StreamGate* const gates = armed & Request::kOpenGates ? request.take_gates() : nullptr;
    if (request.detached.load(std::memory_order_relaxed)) {
      StreamGate::open_all(gates);
      if (request.owner) return request.owner->piece_ended(&request);
      return completions_->pool().recycle(&request);
    }
    if (armed & Request::kList) completions_->pool().list_ended(&request);
    OH_FAULT_POINT("request.ends");
    request.done.store(1, std::memory_order_release);
    StreamGate::open_all(gates);
    if (armed & Request::kAnnounce) completions_->armed().announce();
    if (armed & Request::kList) completions_->listed().announce();
  }

  Loss loss_of(const Status& why) const;
  Status why_unusable() const;

  LinkOwner* const owner_;
  Completions* const completions_;
  Connection* const connection_;
  std::weak_ptr<Peer> holder_;
  std::atomic<State> state_{State::kOpen};
  Status why_;                   // of a lost link; guarded by the lock until it is set
  bool asked_to_serve_ = false;  // guarded by the lock
};

class OH_SCOPED_CAPABILITY LinkGuard {
 public:
  explicit LinkGuard(Link& link) OH_ACQUIRE(link.lock) : link_(link) { link_.lock.lock(); }
  // For a lock that is held already.
  struct Adopt {};
  LinkGuard(Link& link, Adopt) OH_REQUIRES(link.lock) : link_(link) {}
  ~LinkGuard() OH_RELEASE() {
    bool me = link_.wake_me;
    bool them = link_.wake_them;
    link_.wake_me = link_.wake_them = false;
    link_.lock.unlock();
    if (them && link_.their_bell) {
      // Publish before the check for sleepers; pairs with Doorbell::sleep().
      full_fence();
      link_.their_bell->ring();
    }
    if (me) link_.my_bell->ring();
  }
  LinkGuard(const LinkGuard&) = delete;
  LinkGuard& operator=(const LinkGuard&) = delete;

 private:
  Link& link_;
};

}  // namespace oh
