// SPDX-License-Identifier: Apache-2.0
//
// Progress of an endpoint, by waiting threads and by its progress thread.
#include "endpoint/endpoint.h"
#include "endpoint/waiting.h"

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
  if (look_again_.exchange(false)) {
    for (const auto& peer : *all) peer->operations().offer_early();
    any = true;
  }
  if (!readiness_.empty()) any = end_ready() || any;
  return any;
}

bool Endpoint::progress_thoroughly() {
  bool any = progress();
  for_each_peer([&any](Peer& peer) { any = peer.operations().progress(nullptr) || any; });
  UcxWatch* ucx = ucx_.load(std::memory_order_acquire);
  return (ucx && ucx->look_before_sleep()) || any;
}

void Endpoint::look_again() {
  look_again_.store(true);
  doorbell().ring();
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
  Waiter waiter(endpoint->doorbell(), endpoint->polled_, endpoint->config_.spin_us * kMicrosecond,
                Deadline::never());
  waiter.look_often_for(endpoint->proxies_);
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
  if (proxies_.load(std::memory_order_relaxed) == 0) return any;
  for_each_peer([&](Peer& peer) { any = peer.stream().serve(*this) || any; });
  return any;
}

Result<std::unique_ptr<StreamProxy>> Endpoint::make_proxy(Pair& pair,
                                                          std::shared_ptr<ProxyMemory> memory) {
  if (!make_proxy_) return error(OH_ERR_NOT_VIABLE, "the endpoint was made without proxies");
  OH_RETURN_IF_ERROR(start_progress_thread());
  std::unique_ptr<StreamProxy> proxy = make_proxy_(pair, std::move(memory));
  proxies_.fetch_add(1, std::memory_order_relaxed);
  // It sleeps until it is rung for, as long as there are none.
  doorbell().ring();
  return proxy;
}

void Endpoint::proxy_ended() {
  proxies_.fetch_sub(1, std::memory_order_relaxed);
  doorbell().ring();
}

}  // namespace oh
