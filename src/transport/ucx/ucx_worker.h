// SPDX-License-Identifier: Apache-2.0
//
// UcxWorker: UCX's worker of one endpoint, which all its links over UCX share. What arrives is put
// into the inbox of its link's channel; nothing of a peer is touched here, so a thread may make
// progress whatever locks it holds.
//
// Threading: any thread; UCX is called under `lock` only, which is taken after a link's.
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

// What a worker tells its endpoint; called by any thread.
class UcxListener {
 public:
  virtual ~UcxListener() = default;
  // Something has come for a link; without the lock.
  virtual void on_arrival() = 0;
  // UCX has given a link up, and a thread must handle that; with the lock held.
  virtual void on_broken() = 0;
  // Buffers of the pool are free for a waiting channel; with the lock held.
  virtual void on_room() = 0;
  // UCX has something to send, and nothing rings when there is room (1), or no more (-1).
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
  // What peers connect to. `network`: by network only, also if UCX believes that they share memory
  // with us; containers of one host need not.
  Result<Bytes> address(bool network);
  size_t max_header() const { return max_header_; }
  // Readable when there is something to do, once arm() has said that there was nothing.
  int event_fd() const { return event_fd_; }

  // Makes progress; true when something happened. Does nothing while another thread makes it.
  bool progress();
  // False: something has arrived already.
  bool arm();
  // Calls of progress() so far: shows whether a user thread polls.
  uint32_t rounds() const { return rounds_.load(std::memory_order_relaxed); }

  // UCX is called with it held.
  SpinLock lock;
  // Closes an endpoint at once, whatever is in flight; the request of UCX, or null when it has
  // ended. `has_heard`: a message has arrived from the other side. Otherwise the handshake of the
  // other side may still come. UCX 1.13 answers it with an endpoint of its own when it finds none,
  // and aborts the process ("got REP message") if that one fails before the reply has left. So with
  // 1.13 an endpoint that has heard nothing stays until it fails, or the worker goes.
  void* close(ucx::Endpoint endpoint, bool has_heard);
  // The error handler of all endpoints; its context is the worker.
  static void on_endpoint_error(void* self, ucx::Endpoint endpoint, ucx::Code code);
  // Links by number, as frames name them.
  uint32_t add(UcxChannel* channel);
  void remove(uint32_t link);
  // With the lock held: something has come; so much more of ours is in UCX's hands.
  void note_arrival() { arrived_ = true; }
  void note_broken() {
    arrived_ = true;
    listener_->on_broken();
  }
  void note_held(int change) {
    held_ += static_cast<uint32_t>(change);
    if (held_ == (change > 0 ? 1 : 0)) listener_->count_polled(change);
  }
  // What bytes are copied into on their way to UCX. take() by UcxChannel alone, with the lock held.
  UcxPool& pool() { return pool_; }
  // After buffers were given back, or a channel has left the queue.
  void let_next_go_on() {
    if (pool_.is_next_served()) listener_->on_room();
  }
  // Whether UCX has something of ours.
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
  std::vector<ucx::Endpoint> unanswered_;  // the same; of no channel any more, see close()
};

}  // namespace oh
