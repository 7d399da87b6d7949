// SPDX-License-Identifier: Apache-2.0
//
// Requests: the requests of an endpoint from the call that hands one out until it is taken back,
// and the threads that wait for them, or for a condition that progress brings about.
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

// What to do about a timeout of which nothing more is known.
constexpr const char* kIfOnlyLate =
    "If the other side is only late, give a longer timeout (ONEHOP_TIMEOUT sets the default)";
// "3 peers", "3 peers, of which 1 is lost".
std::string peers_text(const Endpoint& endpoint);

class Requests {
 public:
  explicit Requests(Endpoint& endpoint) : endpoint_(endpoint) {}
  // Ends the requests that no peer has; none is posted any more.
  void close();

  // acquire() hands one out, which keeps the endpoint alive; release() takes it back,
  // whatever its state, and returns the endpoint if it was the last one: it may be destroyed when
  // the caller lets go of it. Calls that are given `held` rely on the caller to keep that peer
  // alive.
  template <typename Owner>
  Request* acquire(Owner& owner) {
    Request* request = pool().acquire(owner);
    request->endpoint = &endpoint_;
    return request;
  }
  std::shared_ptr<void> release(Request* request) {
    return request->ended() ? pool().release(request) : abandon(request);
  }
  // Finds out where a request's memory is, and what it has to wait for. Before it is posted.
  Status locate_memory(Request* request, const AfterOption& after);
  Status post_any_source(Request* request);
  // Posts and waits; also for room, when too many sends are pending.
  Status send(Peer& peer, Request* request, Deadline deadline);
  Status post_send(Peer& peer, Request* request, Deadline deadline);

  // Waits until the request has ended or the deadline has passed, which ends it then.
  Status wait(Request* request, Deadline deadline, Peer* held = nullptr);
  // The same, but leaves a request alone that has not ended: OH_IN_PROGRESS.
  Status poll_until(Request* request, Deadline deadline);
  bool test(Request* request);
  // OH_AGAIN when it is too late: the operation has ended or is under way.
  Status cancel(Request* request);
  // The same of one that has ended: OH_AGAIN unless it was cancelled.
  static Status cancel_ended(const Request& request);
  // Announces the end of the request on an event descriptor; `what`: kAnnounce or kList.
  Status arm(Request* request, uint32_t what = Request::kAnnounce);
  // The stream waits until the request has ended; the host does not. See oh_request_stream_wait.
  Status stream_wait(Request* request, cuda::Stream stream);
  // The host waits until no thread is needed for the request any more, then the stream for its end.
  // At the deadline the request is ended, as by wait(). See oh_request_wait_enqueued.
  Status wait_enqueued(Request* request, cuda::Stream stream, Deadline deadline);
  // The same, but leaves a request alone that is not so far: OH_IN_PROGRESS.
  Status poll_enqueued(Request* request, cuda::Stream stream, Deadline deadline);
  bool buffer_released(const Request* request);
  // Waits for a condition that progress may bring about; false at the deadline.
  bool wait_for(const std::function<bool()>& condition, Peer* peer, WaitKind kind, uint64_t tag,
                Deadline deadline);

  // The rest of a timeout's text; leaves the flight record where it was asked for.
  std::string state_at_timeout(Peer& peer, const Wait& wait, const Request* request = nullptr);

  // The same for a condition on requests, of any endpoints of this process.
  static bool wait_across(std::span<Request* const> requests,
                          const std::function<bool()>& condition, Deadline deadline);

  // Posts a request that ends when `look` finds something to take. It does not take it.
  Status post_ready(Request* request, std::string what, Readiness::Look look);

  // Without a handle any more.
  void recycle(Request* request) { pool().recycle(request); }
  Completions& completions() { return completions_; }
  AnySource& any_source() { return any_source_; }
  // Ends those of post_ready() that find something; true when there was one.
  bool end_ready() { return !readiness_.empty() && end_those_ready(); }

 private:
  RequestPool& pool() { return completions_.pool(); }
  enum class Until { kEnded, kEnqueued };  // the latter, or ended
  bool wait_done(Request* request, Deadline deadline, Until until = Until::kEnded);
  bool progress_before_sleep();
  // Whether a stream can wait for it.
  Status check_stream(const Request* request, cuda::Stream stream) const;
  // False: the request has changed meanwhile, and is to be waited for again.
  Result<bool> enqueue_wait(Request* request, cuda::Stream stream);
  void end_by_deadline(Request* request, Deadline deadline);
  Status timeout_status(const Request* request, Peer* peer, Deadline deadline);
  bool try_end(Request* request, const Status& status, Operations::Force force);
  // The last touch of a request that no peer has.
  void finish(Request* request, const Status& status);
  std::shared_ptr<void> abandon(Request* request);
  // Releases a request that was never posted, or was taken back.
  std::shared_ptr<void> release_unposted(Request* request);
  void let_end_see_armed();
  bool end_those_ready();
  // What ends the requests that wait when the endpoint is closed.
  static Status cancelled_by_close();
  // Whom a request is with. A receive from any source may be with a peer that came after its wait
  // began and that another thread destroys: `held` keeps that peer.
  Peer* peer_of(const Request* request, std::shared_ptr<Peer>* held) const;

  Endpoint& endpoint_;
  AnySource any_source_;
  Readiness readiness_;
  Completions completions_;
  SpinTime spin_;
};

}  // namespace oh
