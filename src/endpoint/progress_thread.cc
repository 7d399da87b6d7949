// SPDX-License-Identifier: Apache-2.0
#include "endpoint/progress_thread.h"

#include <utility>

#include "endpoint/endpoint.h"
#include "link/waiting.h"
#include "platform/os/numa.h"
#include "platform/os/os.h"

namespace oh {

Status ProgressThread::start() {
  if (endpoint_.config().progress_thread == "off") {
    return error(OH_ERR_NOT_VIABLE,
                 "this needs a progress thread, which ONEHOP_PROGRESS_THREAD=off forbids");
  }
  MutexLock lock(mutex_);
  if (thread_ || stop_.load()) return {};
  return start_thread("onehop-progress", run, this, &thread_);
}

void ProgressThread::stop() {
  unsigned long thread = 0;
  {
    MutexLock lock(mutex_);
    stop_.store(true);
    thread = std::exchange(thread_, 0);
  }
  if (!thread) return;
  endpoint_.doorbell().ring_always();
  join_thread(thread);
}

void ProgressThread::run(void* context) { static_cast<ProgressThread*>(context)->loop(); }

void ProgressThread::loop() {
  ThreadPlace place;
  const int numa_node = endpoint_.device().numa_node();
  if (numa_node >= 0) place.move_to(numa_node);
  SpinTime spin;
  Waiter waiter(endpoint_.doorbell(), endpoint_.requests().completions().polled(), spin,
                endpoint_.config().spin_us * kMicrosecond, Deadline::never());
  waiter.look_often_for(endpoint_.streams().proxies());
  while (!stop_.load()) {
    bool worked = endpoint_.progress();
    worked = serve_tickets() || worked;
    waiter.pause(
        worked, [&] { return endpoint_.progress_thoroughly() || serve_tickets() || stop_.load(); });
  }
}

bool ProgressThread::serve_tickets() {
  bool any = false;
  if (endpoint_.streams().proxies().load(std::memory_order_relaxed) == 0) return any;
  endpoint_.for_each_peer([&](Peer& peer) {
    if (peer.stream().by_proxy()) any = peer.stream().proxy().serve() || any;
  });
  return any;
}

}  // namespace oh
