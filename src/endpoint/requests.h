// SPDX-License-Identifier: Apache-2.0
//
// Requests: owns the requests of an endpoint from acquire() to release(), and implements waiting
// for them or for a condition that progress brings about.
//
// Threading: any thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "device/locate.h"
#include "endpoint/peer.h"
#include "link/completions.h"
#include "link/readiness.h"
#include "link/waiting.h"
#include "message/any_source.h"

namespace oh {

class Endpoint;

// Advice in a timeout's text when its cause is unknown.
constexpr const char* kIfOnlyLate =
    "If the other side is only late, give a longer timeout (ONEHOP_TIMEOUT sets the default)";
// "3 peers", "3 peers, of which 1 is lost".
std::string peers_text(const Endpoint& endpoint);

class Requests {
 public:
  explicit Requests(Endpoint& endpoint) : endpoint_(endpoint) {}
  // Ends the requests that are not bound to a peer, and refuses new ones.
  void close();

  // A request from acquire() keeps the endpoint alive. release() takes it back in any state; with
  // the last handle it returns the endpoint, which may be destroyed when the caller drops it. A
  // caller that passes `held` guarantees that this peer stays alive.
  template <typename Owner>
  Request* acquire(Owner& owner) {
    Request* request = pool().acquire(owner);
    request->endpoint = &endpoint_;
    return request;
  }
  std::shared_ptr<void> release(Request* request) {
    return request->ended() ? pool().release(request) : abandon(request);
  }
  // Classifies the request's memory and sets the event or stream that it must wait for. Call before
  // posting.
  Status locate_memory(Request* request, const AfterOption& after);
  Status post_any_source(Request* request);
  // Posts the send and waits for it. Blocks while too many sends are pending.
  Status send(Peer& peer, Request* request, Deadline deadline);
  Status post_send(Peer& peer, Request* request, Deadline deadline);

  // Waits until the request has ended. At the deadline it ends the request.
  Status wait(Request* request, Deadline deadline, Peer* held = nullptr);
  // As wait(), but at the deadline leaves the request running and returns OH_IN_PROGRESS.
  Status poll_until(Request* request, Deadline deadline);
  bool test(Request* request);
  // OH_AGAIN: too late, the operation has ended or is in progress.
  Status cancel(Request* request);
  // The result of cancel() for a request that has ended: OH_AGAIN unless it was cancelled.
  static Status cancel_ended(const Request& request);
  // Signals the end of the request on an event descriptor. `what`: kAnnounce or kList.
  Status arm(Request* request, uint32_t what = Request::kAnnounce);
  // Makes the stream, not the host, wait until the request has ended. See oh_request_stream_wait.
  Status stream_wait(Request* request, cuda::Stream stream);
  // Waits on the host until the request needs no thread any more, then makes the stream wait for
  // its end. At the deadline it ends the request, as wait() does. See oh_request_wait_enqueued.
  Status wait_enqueued(Request* request, cuda::Stream stream, Deadline deadline);
  // As wait_enqueued(), but at the deadline leaves the request running and returns OH_IN_PROGRESS.
  Status poll_enqueued(Request* request, cuda::Stream stream, Deadline deadline);
  bool buffer_released(const Request* request);
  // Makes progress until `condition` holds; false at the deadline.
  bool wait_for(const std::function<bool()>& condition, Peer* peer, WaitKind kind, uint64_t tag,
                Deadline deadline);

  // Returns the state of both sides for a timeout's text. Writes the flight record if configured.
  std::string state_at_timeout(Peer& peer, const Wait& wait, const Request* request = nullptr);

  // Waits until `condition` holds for requests of several endpoints of this process; false at the
  // deadline.
  static bool wait_across(std::span<Request* const> requests,
                          const std::function<bool()>& condition, Deadline deadline);

  // Posts a request that ends when `look` reports an available item, which it does not take.
  Status post_ready(Request* request, std::string what, Readiness::Look look);

  // Returns a request without a handle to the pool.
  void recycle(Request* request) { pool().recycle(request); }
  Completions& completions() { return completions_; }
  AnySource& any_source() { return any_source_; }
  // Ends the requests of post_ready() whose item is available; true if there was one.
  bool end_ready() { return !readiness_.empty() && end_those_ready(); }

 private:
  RequestPool& pool() { return completions_.pool(); }
  enum class Until { kEnded, kEnqueued };  // kEnqueued: enqueued or ended
  bool wait_done(Request* request, Deadline deadline, Until until = Until::kEnded);
  bool progress_before_sleep();
  // Checks that a stream can wait for the request.
  Status check_stream(const Request* request, cuda::Stream stream) const;
  // False: the request has changed in the meantime and the caller must wait for it again.
  Result<bool> enqueue_wait(Request* request, cuda::Stream stream);
  void end_by_deadline(Request* request, Deadline deadline);
  Status timeout_status(const Request* request, Peer* peer, Deadline deadline);
  bool try_end(Request* request, const Status& status, Operations::Force force);
  // Ends a request that is not bound to a peer. Another thread may release it from then on.
  void finish(Request* request, const Status& status);
  std::shared_ptr<void> abandon(Request* request);
  // Releases a request that was never posted, or was withdrawn.
  std::shared_ptr<void> release_unposted(Request* request);
  void let_end_see_armed();
  bool end_those_ready();
  // The status of requests that close() ends.
  static Status cancelled_by_close();
  // Returns the peer that a request is bound to. An any-source receive may be bound to a peer that
  // arrived after its wait began and that another thread destroys: `held` keeps that peer alive.
  Peer* peer_of(const Request* request, std::shared_ptr<Peer>* held) const;

  Endpoint& endpoint_;
  AnySource any_source_;
  Readiness readiness_;
  Completions completions_;
  SpinTime spin_;
};

}  // namespace oh
