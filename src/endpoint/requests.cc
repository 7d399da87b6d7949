// SPDX-License-Identifier: Apache-2.0
#include "endpoint/requests.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/fault.h"
#include "base/log.h"
#include "endpoint/endpoint.h"
#include "link/tags.h"
#include "link/waiting.h"

namespace oh {
namespace {
// How long a wait continues after its deadline for a chunk in flight.
constexpr int64_t kGrace = 2 * kMillisecond;

WaitKind wait_kind_of(const Request* request) {
  switch (request->kind) {
    case OpKind::kSend:
      return WaitKind::kSend;
    case OpKind::kRecv:
      return WaitKind::kRecv;
    case OpKind::kRecvBatch:
      return WaitKind::kRecvBatch;
    default:
      return WaitKind::kOneSided;
  }
}

// Reports to the peer what a local thread waits for, from before its first sleep to the end of its
// wait.
//
// Keeps the peer alive: the wait may end because another thread destroys it.
class WaitNotice {
 public:
  WaitNotice() = default;
  ~WaitNotice() {
    if (told_) told_->liveness().set_waiting({});
  }
  WaitNotice(const WaitNotice&) = delete;
  WaitNotice& operator=(const WaitNotice&) = delete;

  // Reports once, as soon as the peer is known.
  void tell(Peer* peer, WaitKind kind, uint64_t tag) {
    if (told_ || !peer) return;
    told_ = peer->link().keep_alive();
    if (told_) told_->liveness().set_waiting({kind, tag});
  }
  // Sends a probe after the first sleep, so that its answer is known at the timeout.
  void probe() {
    if (!told_ || std::exchange(probed_, true)) return;
    told_->liveness().unresponsive_for();
  }

 private:
  std::shared_ptr<Peer> told_;
  bool probed_ = false;
};

}  // namespace

std::string peers_text(const Endpoint& endpoint) {
  size_t all = 0;
  size_t lost = 0;
  endpoint.for_each_peer([&](Peer& peer) {
    ++all;
    lost += peer.usable().ok() ? 0 : 1;
  });
  std::string text = strf("%zu peer%s", all, all == 1 ? "" : "s");
  if (lost > 0) text += strf(", of which %zu %s lost", lost, lost == 1 ? "is" : "are");
  return text;
}

// Releases a request that has not ended. A request bound to a peer continues, and is recycled when
// it ends.
std::shared_ptr<void> Requests::abandon(Request* request) {
  std::shared_ptr<const Endpoint::Peers> alive = endpoint_.peers();
  std::shared_ptr<Peer> held;
  while (true) {
    if (request->ended()) return pool().release(request);
    if (request->kind == OpKind::kReady) {
      if (readiness_.remove(request)) return release_unposted(request);
      continue;  // another thread is ending it
    }
    Peer* peer = peer_of(request, &held);
    OH_FAULT_POINT("request.release");
    if (peer) {
      if (peer->operations().detach(request)) return pool().release_handle();
    } else if (any_source_.take(request)) {
      // The any-source receive was withdrawn before a message matched it.
      return release_unposted(request);
    }
  }
}

std::shared_ptr<void> Requests::release_unposted(Request* request) {
  StreamGate::open_all(request->take_gates());
  return pool().release(request);
}

Peer* Requests::peer_of(const Request* request, std::shared_ptr<Peer>* held) const {
  if (!request->any_source) return request->peer;
  Peer* peer = any_source_.peer_of(request);
  if (peer == held->get()) return peer;
  held->reset();
  // A peer that is no longer in the list is closed, and the request has ended.
  endpoint_.for_each_peer([&](Peer& one) {
    if (&one == peer) *held = one.link().keep_alive();
  });
  return held->get();
}

Status Requests::locate_memory(Request* request, const AfterOption& option) {
  const EndpointDevice& device = endpoint_.device();
  if (!device.gpu() && !option.given()) return {};
  // A receive is offered only once its memory is ready; a send leaves the wait to its engine. The
  // exception is a non-blocking send: no local thread may make progress when its receive arrives.
  // Behind an idle stream it needs no wait, while an event would take a while to complete. Nor does
  // a worker wait: it is so much faster that the stream query pays off.
  bool for_worker = device.worker() && request->size <= Worker::kLongest;
  bool engine_waits = request->kind == OpKind::kSend && !for_worker &&
                      (request->attended || option.kind == AfterOption::Kind::kEvent);
  const Deadline host = endpoint_.until_closed(Deadline::after(endpoint_.config().timeout_ns()));
  OH_ASSIGN_OR_RETURN(LocalBuffer buffer,
                      locate(device.gpu(), request->data, request->size, option,
                             {.ask = !engine_waits, .exported = true, .host = host}));
  request->on_device = buffer.on_device;
  request->pinned = buffer.pinned;
  request->device.after = std::move(buffer.after);
  request->device.exported = std::move(buffer.exported);
  return {};
}

Status Requests::post_any_source(Request* request) {
  OH_RETURN_IF_ERROR(endpoint_.usable());
  request->any_source = true;
  if (endpoint_.trace()) endpoint_.trace()->begin(*request, "any source");
  request->peer = nullptr;
  OH_FAULT_POINT("any_source.post");
  if (!any_source_.post(request)) return endpoint_.why_unusable();
  // Offers the messages that arrived before the request entered the list; later ones find it there.
  endpoint_.for_each_peer([](Peer& peer) { peer.operations().messages().offer_unexpected(); });
  return {};
}

void Requests::finish(Request* request, const Status& status) {
  request->status = status;
  request->phase = Phase::kEnded;
  if (request->posted_at) endpoint_.trace()->drop(*request);
  StreamGate* const gates = request->take_gates();
  if (request->detached.load()) {
    StreamGate::open_all(gates);
    return pool().recycle(request);
  }
  if (request->armed.fetch_or(Request::kEnding) & Request::kList) pool().list_ended(request);
  OH_FAULT_POINT("request.finishes");
  request->done.store(1, std::memory_order_release);
  if (gates) OH_FAULT_POINT("request.opens_gates");
  StreamGate::open_all(gates);
  // Always announce: arm() may run concurrently.
  completions_.armed().announce();
  completions_.listed().announce();
  full_fence();  // store of `done` before the load of sleepers; pairs with Doorbell::sleep()
  endpoint_.doorbell().ring();
}

Status Requests::post_ready(Request* request, std::string what, Readiness::Look look) {
  request->kind = OpKind::kReady;
  request->peer = nullptr;
  request->phase = Phase::kPosted;
  if (!readiness_.add(request, std::move(what), std::move(look))) return endpoint_.why_unusable();
  end_ready();
  return {};
}

Status Requests::cancelled_by_close() { return error(OH_ERR_CANCELLED, "the endpoint was closed"); }

bool Requests::end_those_ready() {
  std::vector<Readiness::Ended> ready = readiness_.remove_ready();
  for (const Readiness::Ended& ended : ready) {
    // close() runs in another thread and has not ended this request yet.
    bool closed = ended.status.code() == OH_ERR_CLOSED;
    finish(ended.request, closed ? cancelled_by_close() : ended.status);
  }
  return !ready.empty();
}

void Requests::close() {
  const Status closed = cancelled_by_close();
  any_source_.close([&](Request* request) { finish(request, closed); });
  for (Request* request : readiness_.close()) finish(request, closed);
}

Status Requests::post_send(Peer& peer, Request* request, Deadline deadline) {
  Status status = peer.operations().messages().post_send(request);
  if (status.code() != OH_AGAIN) return status;
  auto posted = [&] {
    status = peer.operations().messages().post_send(request);
    return status.code() != OH_AGAIN;
  };
  if (wait_for(posted, &peer, WaitKind::kSend, request->tag, deadline)) return status;
  return timed_out(deadline.length(), "%s; %s", status.text().c_str(),
                   state_at_timeout(peer, {WaitKind::kSend, request->tag}).c_str());
}

Status Requests::send(Peer& peer, Request* request, Deadline deadline) {
  OH_RETURN_IF_ERROR(post_send(peer, request, deadline));
  return wait(request, deadline, &peer);
}

bool Requests::wait_done(Request* request, Deadline deadline, Until until) {
  if (request->ended()) return true;
  Waiter waiter(endpoint_.doorbell(), completions_.polled(), spin_,
                endpoint_.config().spin_us * kMicrosecond, deadline);
  std::shared_ptr<Peer> held;
  std::shared_ptr<Peer> first_held;
  // A blocking call set `attended` when it posted.
  Peer* attending = request->attended ? nullptr : peer_of(request, &first_held);
  if (attending) attending->operations().attend(request, true);
  WaitNotice notice;
  auto is_done = [&] {
    if (request->ended()) return true;
    if (until == Until::kEnded) return false;
    Peer* peer = peer_of(request, &held);
    return peer && peer->operations().is_enqueued(*request);
  };
  bool done = true;
  while (!is_done()) {
    Peer* peer = peer_of(request, &held);
    bool worked = peer ? peer->operations().spin(request) : endpoint_.progress();
    if (is_done()) break;
    if (waiter.look_around()) worked = endpoint_.progress() || worked;
    bool go_on = waiter.pause(worked, [&] {
      notice.tell(peer_of(request, &held), wait_kind_of(request), request->tag);
      return progress_before_sleep() || is_done();
    });
    if (!go_on) {
      done = is_done();
      if (!done) request->wait_began(deadline.set_at());
      break;
    }
    notice.probe();
  }
  if (attending && !request->ended()) attending->operations().attend(request, false);
  OH_FAULT_POINT("wait.ended");
  return done;
}

Status Requests::poll_until(Request* request, Deadline deadline) {
  if (request->ended()) return request->status;
  std::shared_ptr<const Endpoint::Peers> alive = endpoint_.peers();
  if (!wait_done(request, deadline)) return error(OH_IN_PROGRESS, "the operation has not ended");
  return request->status;
}

Status Requests::wait(Request* request, Deadline deadline, Peer* held) {
  if (request->ended()) return request->status;
  std::shared_ptr<const Endpoint::Peers> alive;
  if (!held) alive = endpoint_.peers();
  if (!wait_done(request, deadline)) end_by_deadline(request, deadline);
  return request->status;
}

Status Requests::wait_enqueued(Request* request, cuda::Stream stream, Deadline deadline) {
  Status status = poll_enqueued(request, stream, deadline);
  if (status.code() != OH_IN_PROGRESS) return status;
  std::shared_ptr<const Endpoint::Peers> alive = endpoint_.peers();
  end_by_deadline(request, deadline);
  return request->status;
}

Status Requests::poll_enqueued(Request* request, cuda::Stream stream, Deadline deadline) {
  if (request->ended()) return request->status;
  OH_RETURN_IF_ERROR(check_stream(request, stream));
  // The progress thread completes the request after this call returns. Without one, wait here.
  if (!endpoint_.progress_thread().start().ok()) return poll_until(request, deadline);
  std::shared_ptr<const Endpoint::Peers> alive = endpoint_.peers();
  while (wait_done(request, deadline, Until::kEnqueued)) {
    if (request->ended()) return request->status;
    OH_FAULT_POINT("request.enqueued");
    OH_ASSIGN_OR_RETURN(bool waits, enqueue_wait(request, stream));
    // Later errors are reported when the request is tested or waited for.
    if (waits) {
      request->wait_began(deadline.set_at());
      // The progress thread may be asleep without having seen this request's work.
      endpoint_.doorbell().ring();
      return request->ended() ? request->status : Status();
    }
  }
  return error(OH_IN_PROGRESS, "the operation is not enqueued yet");
}

Result<bool> Requests::enqueue_wait(Request* request, cuda::Stream stream) {
  std::shared_ptr<Peer> held;
  Peer* peer = peer_of(request, &held);
  if (!peer) return false;
  return peer->operations().enqueue_wait(*request, stream);
}

bool Requests::test(Request* request) {
  if (request->ended()) return true;
  endpoint_.progress();
  return request->ended();
}

bool Requests::wait_across(std::span<Request* const> requests,
                           const std::function<bool()>& condition, Deadline deadline) {
  if (condition()) return true;
  std::vector<Endpoint*> endpoints;
  for (Request* request : requests) {
    if (std::find(endpoints.begin(), endpoints.end(), request->endpoint) == endpoints.end()) {
      endpoints.push_back(request->endpoint);
    }
  }
  Endpoint& first = *endpoints.front();
  if (endpoints.size() == 1) {
    return first.requests().wait_for(condition, nullptr, WaitKind::kNothing, 0, deadline);
  }
  // No single doorbell covers all endpoints: keep the naps short.
  const std::atomic<uint32_t> polled{1};
  Waiter waiter(first.doorbell(), polled, first.requests().spin_,
                first.config().spin_us * kMicrosecond, deadline);
  while (true) {
    bool worked = false;
    for (Endpoint* endpoint : endpoints) worked = endpoint->progress() || worked;
    if (condition()) return true;
    if (!waiter.pause(worked, [] { return false; })) return condition();
  }
}

Status Requests::timeout_status(const Request* request, Peer* peer, Deadline deadline) {
  // Callers may wait in slices; the deadline is that of the last slice.
  const int64_t since = request->waits_since.load(std::memory_order_relaxed);
  int64_t waited = since == 0 ? deadline.length() : deadline.at() - since;
  if (request->kind == OpKind::kReady) {
    return timed_out(waited, "%s. %s", readiness_.what(request).c_str(), kIfOnlyLate);
  }
  std::string what =
      strf("%s of %llu bytes with %s", verb_of(request->kind),
           static_cast<unsigned long long>(request->size), tag_text(request->tag).c_str());
  if (!peer) {
    return timed_out(waited, "%s from any source; no message came from %s. %s", what.c_str(),
                     peers_text(endpoint_).c_str(), kIfOnlyLate);
  }
  return timed_out(waited, "%s, peer %s; %s", what.c_str(), peer->link().name.c_str(),
                   state_at_timeout(*peer, {wait_kind_of(request), request->tag}, request).c_str());
}

std::string Requests::state_at_timeout(Peer& peer, const Wait& wait, const Request* request) {
  if (!endpoint_.config().flight_dir.empty()) {
    std::string path = strf("%s/onehop-%d-peer-%llu.flight", endpoint_.config().flight_dir.c_str(),
                            getpid(), static_cast<unsigned long long>(peer.link().id));
    Status status = write_flight_record(path, peer.link().name, peer.operations().flight_record());
    if (!status.ok()) OH_LOG(kWarn, "%s", status.text().c_str());
  }
  std::string mismatch = peer.mismatch(wait);
  return peer.describe(request) + ". " + (mismatch.empty() ? kIfOnlyLate : mismatch);
}

bool Requests::try_end(Request* request, const Status& status, Operations::Force force) {
  if (request->kind == OpKind::kReady) {
    if (readiness_.remove(request)) finish(request, status);
    while (!request->ended()) sched_yield();  // another thread is ending it
    return true;
  }
  std::shared_ptr<Peer> held;
  while (true) {
    if (request->ended()) return true;
    Peer* peer = peer_of(request, &held);
    OH_FAULT_POINT("request.try_end");
    if (peer) {
      if (peer->operations().try_end(request, status, force)) return true;
      // The operation is in progress, unless its message was withdrawn meanwhile.
      if (peer_of(request, &held) == peer) return false;
    } else if (any_source_.take(request)) {
      break;
    }
  }
  finish(request, status);
  return true;
}

// A message for the receive or a chunk for the buffer may be in flight. Both end soon unless the
// peer is stopped; then the buffer stays in doubt.
void Requests::end_by_deadline(Request* request, Deadline deadline) {
  std::shared_ptr<Peer> held;
  Status status = timeout_status(request, peer_of(request, &held), deadline);
  Deadline grace = Deadline::after(kGrace);
  while (!try_end(request, status, Operations::Force::kDeadline)) {
    endpoint_.progress();
    if (grace.passed() && try_end(request, status, Operations::Force::kGiveUp)) return;
    sched_yield();
  }
}

Status Requests::cancel_ended(const Request& request) {
  if (request.status.code() == OH_ERR_CANCELLED) return {};
  return error(OH_AGAIN, "too late to cancel: the %s has ended", verb_of(request.kind));
}

Status Requests::cancel(Request* request) {
  std::shared_ptr<const Endpoint::Peers> alive = endpoint_.peers();
  endpoint_.progress();
  if (request->ended()) return cancel_ended(*request);
  Status status =
      error(OH_ERR_CANCELLED, "the %s of %llu bytes with %s was cancelled", verb_of(request->kind),
            static_cast<unsigned long long>(request->size), tag_text(request->tag).c_str());
  if (try_end(request, status, Operations::Force::kCancel)) return {};
  return error(OH_AGAIN, "too late to cancel: the %s is under way", verb_of(request->kind));
}

Status Requests::arm(Request* request, uint32_t what) {
  const bool list = what & Request::kList;
  CompletionEvent& event = list ? completions_.listed() : completions_.armed();
  OH_RETURN_IF_ERROR(event.fd().status());
  OH_RETURN_IF_ERROR(endpoint_.progress_thread().start());
  request->wait_began(now_ns());
  if (list) pool().expect(request);
  const uint32_t before = request->armed.fetch_or(what, std::memory_order_seq_cst);
  let_end_see_armed();
  // finish() holds no lock and may have missed this bit.
  while (before & Request::kEnding && !request->ended()) sched_yield();
  if (request->ended()) {
    if (list) pool().list_ended(request);
    event.announce();
  }
  // The progress thread may be asleep without having seen this request's work.
  endpoint_.doorbell().ring();
  return {};
}

// A thread that ends the request reads `armed` before it sets `done`, with its peer's lock held.
// Passing through every lock ensures that a thread that missed the bit has set `done`.
void Requests::let_end_see_armed() {
  endpoint_.for_each_peer([](Peer& peer) { LinkGuard guard(peer.link()); });
}

Status Requests::check_stream(const Request* request, cuda::Stream stream) const {
  const std::shared_ptr<cuda::Gpu>& gpu = endpoint_.device().gpu();
  if (!gpu) {
    return error(OH_ERR_INVALID,
                 "a stream cannot wait for the %s: its endpoint has no device; create the endpoint "
                 "or communicator with the stream's device",
                 verb_of(request->kind));
  }
  OH_ASSIGN_OR_RETURN(bool capturing, gpu->is_capturing(stream));
  if (capturing) {
    return error(OH_ERR_INVALID,
                 "stream %p is being captured into a graph, which cannot wait for the %s: it ends "
                 "once, a graph may run often; wait before the capture, or use on(stream)",
                 static_cast<void*>(stream), verb_of(request->kind));
  }
  return {};
}

Status Requests::stream_wait(Request* request, cuda::Stream stream) {
  if (request->ended()) return {};
  OH_RETURN_IF_ERROR(check_stream(request, stream));
  const std::shared_ptr<cuda::Gpu>& gpu = endpoint_.device().gpu();
  OH_RETURN_IF_ERROR(endpoint_.progress_thread().start());
  StreamGates& gates = StreamGates::instance();
  OH_ASSIGN_OR_RETURN(StreamGate * gate, gates.take(gpu));
  if (!request->add_gate(gate)) {
    gates.give(gate);
    return {};
  }
  let_end_see_armed();
  OH_FAULT_POINT("request.gate_added");
  if (request->ended()) {
    // The request has ended and no stream waits on the gate. The thread that ended it may have
    // taken the gate and will open it; otherwise open it here.
    gate->last.store(StreamGate::kOpen);
    StreamGate::open_all(request->take_gates());
    return {};
  }
  OH_FAULT_POINT("request.stream_wait");
  Status enqueued = gates.enqueue(gate, stream);
  endpoint_.doorbell().ring();
  return enqueued;
}

bool Requests::buffer_released(const Request* request) {
  if (!request->ended()) return false;
  return !request->doubt_peer || request->doubt_peer->operations().buffer_released(request);
}

// In-process peers may depend on the waiting thread for the progress of their own endpoint.
bool Requests::progress_before_sleep() {
  bool any = endpoint_.progress_thoroughly();
  endpoint_.for_each_peer([&any](Peer& peer) { any = peer.operations().progress_there() || any; });
  return any;
}

bool Requests::wait_for(const std::function<bool()>& condition, Peer* peer, WaitKind kind,
                        uint64_t tag, Deadline deadline) {
  Waiter waiter(endpoint_.doorbell(), completions_.polled(), spin_,
                endpoint_.config().spin_us * kMicrosecond, deadline);
  WaitNotice notice;
  // The condition may have side effects, such as taking a message: it is not called again once it
  // holds.
  bool met = condition();
  auto meet = [&] { return met = condition(); };
  while (!met) {
    bool alone = peer && !peer->link().ucx && !waiter.look_around();
    bool worked = alone ? peer->operations().poll(nullptr) : endpoint_.progress();
    bool go_on = waiter.pause(worked, [&] {
      notice.tell(peer, kind, tag);
      return progress_before_sleep() || meet();
    });
    if (met || meet() || !go_on) break;
    notice.probe();
  }
  return met;
}

}  // namespace oh
