// SPDX-License-Identifier: Apache-2.0
//
// Progress of an endpoint, by waiting threads and by its progress thread, and what tells of it.
#include "endpoint/endpoint.h"
#include "endpoint/waiting.h"
#include "platform/os/os.h"

namespace oh {

bool Endpoint::poll_peers() {
  bool any = false;
  for_each_peer([&any](Peer& peer) { any = peer.operations().poll(nullptr) || any; });
  return any;
}

bool Endpoint::progress() {
  UcxWatch* ucx = ucx_.load(std::memory_order_acquire);
  bool any = ucx && ucx->worker().progress();
  std::shared_ptr<const Peers> all = peers();
  for (const auto& peer : *all) any = peer->operations().poll(nullptr) || any;
  if (requests_.any_source().take_look_again()) {
    for (const auto& peer : *all) peer->operations().offer_unexpected();
    any = true;
  }
  any = requests_.end_ready() || any;
  return any;
}

bool Endpoint::progress_thoroughly() {
  bool any = progress();
  for_each_peer([&any](Peer& peer) { any = peer.operations().progress(nullptr) || any; });
  UcxWatch* ucx = ucx_.load(std::memory_order_acquire);
  return (ucx && ucx->look_before_sleep()) || any;
}

Status Endpoint::start_progress_thread() {
  if (config_.progress_thread == "off") {
    return error(OH_ERR_NOT_VIABLE,
                 "this needs a progress thread, which ONEHOP_PROGRESS_THREAD=off forbids");
  }
  MutexLock lock(progress_mutex_);
  if (progress_thread_ || closed_.load()) return {};
  return start_thread("onehop-progress", run_progress_thread, this, &progress_thread_);
}

void Endpoint::run_progress_thread(void* context) {
  auto* endpoint = static_cast<Endpoint*>(context);
  ThreadPlace place;
  if (endpoint->numa_node() >= 0) place.move_to(endpoint->numa_node());
  Waiter waiter(endpoint->doorbell(), endpoint->requests_.completions().polled(),
                endpoint->config_.spin_us * kMicrosecond, Deadline::never());
  waiter.look_often_for(endpoint->streams_->proxies());
  while (!endpoint->stop_progress_.load()) {
    bool worked = endpoint->progress();
    worked = endpoint->serve_tickets() || worked;
    waiter.pause(worked, [&] {
      return endpoint->progress_thoroughly() || endpoint->serve_tickets() ||
             endpoint->stop_progress_.load();
    });
  }
}

bool Endpoint::serve_tickets() {
  bool any = false;
  if (streams_->proxies().load(std::memory_order_relaxed) == 0) return any;
  for_each_peer([&](Peer& peer) {
    if (peer.stream().by_proxy()) any = peer.stream().proxy().serve() || any;
  });
  return any;
}

// ---- Notifications and events -----------------------------------------------------------------

Result<bool> Endpoint::take_notification(size_t capacity, Notification* notification,
                                         size_t* size) {
  progress();
  std::shared_ptr<const Peers> all = peers();
  OH_ASSIGN_OR_RETURN(bool taken, notifications_.take(capacity, notification, size));
  if (!taken) return false;
  for (const auto& peer : *all) {
    if (peer->link().id != notification->peer_id) continue;
    peer->operations().one_sided().notification_collected(notification->bytes.size());
  }
  return true;
}

Result<bool> Endpoint::has_notification() {
  if (!notifications_.empty()) return true;
  if (closed_.load()) return error(OH_ERR_CLOSED, "the endpoint was closed");
  return false;
}

Status Endpoint::wait_notification(Deadline deadline) {
  Result<bool> there = false;
  auto came = [&] {
    there = has_notification();
    return !there.ok() || *there;
  };
  if (!requests_.wait_for(came, nullptr, WaitKind::kNothing, 0, deadline)) {
    return timed_out(deadline.length(), "no notification came from %zu peers. %s", peers()->size(),
                     kIfOnlyLate);
  }
  return there.status();
}

Status Endpoint::arm(Request* request) {
  OH_RETURN_IF_ERROR(requests_.completions().event_fd().status());
  OH_RETURN_IF_ERROR(start_progress_thread());
  request->armed.store(1, std::memory_order_seq_cst);
  // A thread that ends the request looks at `armed` before it sets `done`, with the lock of its
  // peer held: whoever has missed the word has left the lock afterwards, and `done` is seen.
  for_each_peer([](Peer& peer) { LinkGuard guard(peer.link()); });
  if (request->ended()) requests_.completions().announce();
  // The progress thread may sleep without having seen this request's work.
  doorbell().ring();
  return {};
}

}  // namespace oh
