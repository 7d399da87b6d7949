// SPDX-License-Identifier: Apache-2.0
//
// UcxWorker: UCX's worker of one endpoint, which all its links over UCX share. Progress puts
// arrived messages into the inbox of the link's channel and takes no link's lock, so a thread may
// make progress whatever link locks it holds.
//
// Threading: any thread; UCX is called only under `lock`, which is taken after a link's lock.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/sync.h"
#include "base/wire.h"
#include "transport/ucx/ucx_context.h"
#include "transport/ucx/ucx_pool.h"

namespace oh {

class UcxChannel;

// The worker's notifications to its endpoint; called by any thread.
class UcxListener {
 public:
  virtual ~UcxListener() = default;
  // A frame or completion has arrived for a link. Called without the lock.
  virtual void on_arrival() = 0;
  // A link is broken, and a thread must handle that. Called with the lock held.
  virtual void on_broken() = 0;
  // A pool buffer is free for a queued channel. Called with the lock held.
  virtual void on_room() = 0;
  // UCX has operations in flight, which must be polled since nothing wakes the endpoint (1), or has
  // none any more (-1).
  virtual void count_polled(int change) = 0;
};

class UcxWorker {
 public:
  static Result<std::shared_ptr<UcxWorker>> create(const UcxContext& context,
                                                   const UcxPoolLimits& limits,
                                                   std::shared_ptr<UcxListener> listener);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const UcxContext& context() const { return context_; }
  const ucx::Library& library() const { return context_.library(); }
  ucx::Worker handle() const { return handle_; }
  // The address to which peers connect. `network`: with network transports only; UCX may assume
  // shared memory between containers of one host that do not share it.
  Result<Bytes> address(bool network);
  size_t max_header() const { return max_header_; }
  // Becomes readable when progress is needed, once arm() has returned true.
  int event_fd() const { return event_fd_; }

  // Makes progress; true if anything happened. Returns false at once while another thread holds the
  // lock.
  bool progress();
  // Arms the event descriptor. False: events are already pending.
  bool arm();
  // Number of progress() calls so far; shows whether a user thread polls.
  uint32_t rounds() const { return rounds_.load(std::memory_order_relaxed); }

  // Held during all calls of UCX.
  SpinLock lock;
  // Force-closes an endpoint, whatever is in flight. Returns UCX's request to wait for, or null.
  // `has_heard`: a message has arrived from the peer. Otherwise the peer's handshake may still
  // arrive. UCX 1.13 then answers it with a new endpoint of its own, and aborts the process
  // ("got REP message") if that one fails before the reply is sent. So with 1.13 an endpoint
  // without a message stays open until it fails or the worker is destroyed.
  void* close(ucx::Endpoint endpoint, bool has_heard);
  // The error handler of all endpoints; its context is the worker.
  static void on_endpoint_error(void* self, ucx::Endpoint endpoint, ucx::Code code);
  // Registers a channel; returns the number of its link, which frames carry.
  uint32_t add(UcxChannel* channel);
  void remove(uint32_t link);
  // With the lock held: a frame or completion has arrived; a link is broken; the number of
  // operations that UCX has in flight changes by `change` (1 or -1).
  void note_arrival() { arrived_ = true; }
  void note_broken() {
    arrived_ = true;
    listener_->on_broken();
  }
  void note_held(int change) {
    held_ += static_cast<uint32_t>(change);
    if (held_ == (change > 0 ? 1 : 0)) listener_->count_polled(change);
  }
  // The bounce buffers of sends. Only UcxPacker calls take(), with the lock held.
  UcxPool& pool() { return pool_; }
  // Notifies the next channel in the queue. Call it after buffers were returned or a channel has
  // left the queue.
  void let_next_go_on() {
    if (pool_.is_next_served()) listener_->on_room();
  }
  // Whether UCX has operations in flight.
  bool holds() {
    SpinGuard guard(lock);
    return held_ > 0;
  }

 private:
  UcxWorker(const UcxContext& context, const UcxPoolLimits& limits);
  Status start();
  void* force_close(ucx::Endpoint endpoint);
  void drop_unanswered(ucx::Endpoint endpoint);
  static ucx::Code on_message(void* self, const void* header, size_t header_size, void* data,
                              size_t size, const ucx::AmReceived* received);

  const UcxContext& context_;
  std::shared_ptr<UcxListener> listener_;
  ucx::Worker handle_ = nullptr;
  size_t max_header_ = 0;
  int event_fd_ = -1;
  std::atomic<uint32_t> rounds_{0};  // written with the lock held

  UcxPool pool_;
  uint32_t held_ = 0;
  bool arrived_ = false;                   // guarded by the lock, as UCX's callbacks are
  std::vector<UcxChannel*> channels_;      // the same
  std::vector<ucx::Endpoint> unanswered_;  // the same; endpoints that close() keeps open
};

}  // namespace oh
