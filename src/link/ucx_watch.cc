// SPDX-License-Identifier: Apache-2.0
#include "link/ucx_watch.h"

#include <sys/epoll.h>

#include "base/clock.h"
#include "base/sync.h"

namespace oh {
namespace {
constexpr uint32_t kEvents = EPOLLIN | EPOLLONESHOT;
constexpr int64_t kAway = kMillisecond;
// Limits of one turn, in polls and in time, so that the watcher gets to its other work.
constexpr int kLooksAtOnce = 64;
constexpr int64_t kTimeAtOnce = 200 * kMicrosecond;
}  // namespace

Status UcxWatch::start() {
  watching_.store(true);
  return node_->watcher().add(worker_->event_fd(), kEvents, shared_from_this());
}

void UcxWatch::stop() {
  if (!stopped_.exchange(true)) node_->watcher().remove(worker_->event_fd());
}

bool UcxWatch::look_before_sleep() {
  if (watching_.load(std::memory_order_acquire)) return false;
  if (!worker_->arm()) return true;
  watching_.store(true, std::memory_order_release);
  if (!stopped_.load() && !node_->watcher().modify(worker_->event_fd(), kEvents).ok()) {
    watching_.store(false, std::memory_order_release);
    return true;
  }
  // No event arrives for work that was left with UCX before look_soon() could see `watching_`.
  full_fence();
  if (worker_->holds()) look_soon();
  return false;
}

void UcxWatch::look_soon() {
  // After the work that the caller has left with UCX; pairs with look_before_sleep().
  full_fence();
  // If it is not watching, a poll is running or scheduled.
  if (!watching_.load(std::memory_order_relaxed) || !watching_.exchange(false)) return;
  look_at(now_ns() + kAway);
}

void UcxWatch::look_at(int64_t when) {
  // The scheduled poll sees the work that the caller has left. A second one would repeat, too, for
  // as long as UCX holds work, and each thread that sleeps would add another.
  if (posted_.exchange(true)) return;
  node_->watcher().post_at(when, [weak = weak_from_this()] {
    std::shared_ptr<UcxWatch> self = weak.lock();
    if (!self) return;
    self->posted_.exchange(false);  // sees the work of the callers that found it set
    self->look();
  });
}

void UcxWatch::on_ready(uint32_t) {
  watching_.store(false, std::memory_order_release);
  look();
}

void UcxWatch::look() {
  if (stopped_.load()) return;
  // Read before this thread polls.
  uint32_t rounds = worker_->rounds();
  bool others = rounds != seen_rounds_;
  bool armed = false;
  const Deadline turn = Deadline::after(kTimeAtOnce);
  for (int i = 0; i < kLooksAtOnce && !armed && (i == 0 || !turn.passed()); ++i) {
    bool any = worker_->progress();
    ++rounds;
    any = serve_() || any;
    if (!any && others) break;
    // No event reports room for what UCX has to send in shared memory: go on polling.
    armed = !any && !worker_->holds() && !look_before_sleep();
  }
  // A thread may have consumed or left work since the last poll: its look_soon() found this poll
  // running.
  if (armed && serve_()) look_soon();
  seen_rounds_ = worker_->rounds();
  others = others || seen_rounds_ != rounds;
  if (armed) return;
  look_at(others || worker_->holds() ? now_ns() + kAway : 0);
}

}  // namespace oh
