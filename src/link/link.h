// SPDX-License-Identifier: Apache-2.0
//
// Link: what the parts of a peer (sender, receiver, transfers, one-sided operations) share: the
// channel, the limits, whether the link is open, and how a request ends.
//
//   OPEN ──▶ LOST (the other side died, said goodbye, or broke the protocol)
//     └────▶ CLOSED (by us)
//
// Threading: guarded by `lock`, which LinkGuard takes; what LinkGuard finds to be woken is rung
// after the lock is free.
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
  // What they are over UCX.
  uint64_t ucx_eager_max = 0;
  uint64_t ucx_eager_credit = 0;
  uint32_t max_pending = 0;
};

// Eager credit that a message of `size` bytes takes until its receive has it.
inline uint64_t eager_charge(uint64_t size) { return size < 64 ? 64 : (size + 63) & ~uint64_t{63}; }

// What only the layers above a link can do for it.
class LinkOwner {
 public:
  // Starts the progress thread, which is the endpoint's: no local thread waits for this work.
  virtual void serve() = 0;
  // The same of the other endpoint, which is of this process, too.
  virtual void serve_there() = 0;
  // Schedules progress on what was posted, for which no thread may wait: the parts of the link know
  // whether there is any. With the lock held.
  virtual void posted() = 0;
  // Makes progress on all parts, `focus` first, with the lock held. True when something happened.
  virtual bool progress_locked(Request* focus) = 0;

 protected:
  ~LinkOwner() = default;
};

class Link {
 public:
  // `owner` lives as long; `connection` is null within the process.
  Link(LinkOwner& owner, Completions& completions, Connection* connection)
      : owner_(&owner), completions_(&completions), connection_(connection) {}

  SpinLock lock;
  Peer* peer = nullptr;
  std::string name;  // of the other side, for texts
  uint64_t id = 0;   // of this peer in the process
  int64_t rank = -1;

  // The link.
  oh_path path = OH_PATH_NONE;  // of everything that is not inline
  std::unique_ptr<Segment> segment;
  std::unique_ptr<Channel> channel;
  RingChannel* ring = nullptr;                  // the channel, where there is a segment
  RingChannel* short_ring = nullptr;            // the same, where messages need no request
  UcxChannel* ucx = nullptr;                    // the channel, over UCX
  CountedCredit* counted = nullptr;             // the channel, where there is no segment
  std::unique_ptr<Mover> mover;                 // how we reach their memory; may be null
  bool they_reach_us = false;                   // they have one, too
  const MessageSelection* selection = nullptr;  // how messages travel
  Imports imports;
  MemoryExchange* memory = nullptr;      // how the two sides map each other's memory
  Status why_no_device;                  // not ok: device memory has no way over this link
  bool maps_devices = true;              // each side may map the other's device memory
  bool same_gpu = false;                 // the other endpoint is on our GPU
  std::unique_ptr<DeviceLink> device;    // ours, where the endpoint is on a GPU; after the segment
  std::shared_ptr<cuda::Gpu> gpu;        // of the endpoint; null: for host memory only
  std::shared_ptr<StagingPool> staging;  // where the endpoint is on a GPU
  uint32_t staging_depth = 0;            // buffers of one message at once
  Doorbell* my_bell = nullptr;
  Doorbell* their_bell = nullptr;

  Limits mine;
  Limits theirs;
  uint64_t granted_inline = 0;  // of what was asked for
  Outbox outbox;
  AnySource* any_source = nullptr;
  Stats stats;
  FlightRecorder flight;
  // Null: operations are not traced. Else each of the application's has a request, also where a
  // small message could do without: the fast path is closed.
  Trace* trace = nullptr;
  // Of the operations in flight; null: no page tells of them (ONEHOP_TOP).
  std::unique_ptr<PostedTimes> posted_times;

  // Operations that the other side refers to by name, and sends that have not ended.
  OpTable<Request> ops;
  uint32_t pending_sends = 0;

  bool wake_me = false;
  bool wake_them = false;
  // The other side is dead or out of reach: no thread copies from or to it any more.
  std::atomic<bool> gone{false};
  // The other side has closed the link, and does not just fail.
  std::atomic<bool> said_goodbye{false};
  // Whether work is left that needs progress. Written under the lock.
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
  // Returns the state before. With the lock held.
  State set_closed();
  // How there can be a link again, for texts.
  std::string remedy() const;

  // Whether the process that the mover copies from and to is still the one we are linked to. Any
  // thread, without the lock.
  Status still_there() const;
  // Any thread: hung up, or seen to die. No thread of the other side touches our memory any more.
  bool peer_is_dead() const { return connection_ && connection_->peer_is_dead(); }
  // Any thread: its process has ended, and its engine with it.
  bool process_is_dead() const { return connection_ && connection_->process_is_dead(); }
  bool within_process() const { return !connection_; }
  void hang_up() {
    if (connection_) connection_->break_off();
  }
  // Has the watcher's thread make progress.
  void wake_watcher() {
    if (connection_) connection_->look_again();
  }

  void serve() { owner_->serve(); }
  // The target's progress shall not depend on its calls: asks it once. Any thread, without the
  // lock.
  Status ask_to_serve();
  void posted() { owner_->posted(); }
  bool progress_locked(Request* focus) { return owner_->progress_locked(focus); }
  // The same. Any thread, without the lock.
  bool make_progress();
  void count_polled(int change) { completions_->count_polled(change); }

  // Holds the peer, and with it the segment. Null while it is destroyed.
  std::shared_ptr<Peer> keep_alive() const { return holder_.lock(); }
  // Before the link is used.
  void bind(std::weak_ptr<Peer> holder) { holder_ = std::move(holder); }

  // Whether something has come, as far as progress has been made.
  bool has_frames() const { return ring ? ring->ready() : ucx && ucx->ready(); }
  // Ends a request that the channel or an engine is at. Until they are through, the buffer stays
  // with its holder.
  void leave_in_doubt(Request& request, const Status& status);

  // What the other side has said of a one-sided operation.
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

  // Their memory at [remote, remote + size), where it is in a block that is mapped here.
  uint8_t* mapped(uint32_t block, uint64_t remote, uint64_t size,
                  std::shared_ptr<ImportedBlock>* holder) {
    if (block == 0) return nullptr;
    *holder = imports.find(block);
    return *holder ? (*holder)->translate(remote, size) : nullptr;
  }

  // Runs what may block, or takes long, without the lock, which is held around it.
  template <typename Work>
  auto without_lock(const Work& work) {
    struct Unlocked {
      explicit Unlocked(SpinLock& held) : lock(held) { lock.unlock(); }
      ~Unlocked() { lock.lock(); }
      SpinLock& lock;
    } unlocked(lock);
    return work();
  }

  // Whether the time of such an operation is measured: where it takes microseconds, so that the
  // clock is cheap. Any thread, without the lock.
  bool is_timed(uint64_t bytes) const { return bytes >= kTimedBytes || !segment || gpu; }
  // Of a request of the application, before it is posted.
  void note_post(Request& request) const {
    if (trace && !request.internal && !request.posted_at) trace->begin(request, name.c_str());
  }
  // Of a traced one, as it ends.
  void note_end(Request& request) const { trace->end(id, request); }
  // The call that posted the request is about to return. With the lock held.
  void note_posted(Request& request) {
    if (request.ended()) return;
    request.counted = true;
    ++stats.outstanding;
    if (posted_times) posted_times->add(request, now_ns());
    if (request.began) request.posting = now_ns() - request.began;
  }
  // The times of a request that ends now, if it has ended well. A request whose end is known to its
  // thread alone needs no lock.
  void observe(Request& request, int64_t now) const;

  // The last touch of a request.
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
  // The same for a receive whose message was one short frame. always_inline: a call costs a small
  // message 1% of its instructions.
  [[gnu::always_inline]] void finish_short(Request& request, oh_path taken, uint64_t tag,
                                           uint64_t length) {
    tell_short(request, taken, tag, length);
    stats.count(MetricOp::kRecv, request.path, length);
    uncount(request);
    flight.note(request.kind, request.path, tag, length);
    end(request);
  }
  // The same for a short message that passed while its request was being posted: only the calling
  // thread knows the request. The lock is not needed.
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
    // The lock is held against Requests::arm().
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
      // What was published comes before our look at the sleepers; pairs with Doorbell::sleep().
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
