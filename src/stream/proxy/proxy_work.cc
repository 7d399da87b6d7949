// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/proxy_work.h"

#include <sched.h>

#include <memory>

#include "base/log.h"
#include "onehop/detail/host_atomics.h"

namespace oh {

void ProxyWork::renew() {
  std::destroy_at(&request);
  std::construct_at(&request);
  atomic.reset();
}

bool ProxyWork::poll(ProxyPort& port, bool* moved) {
  if (!request.ended()) {
    if (now_ns() >= deadline && port.try_end(request, Status(OH_ERR_TIMEOUT, kTooLate))) {
      *moved = true;
    }
    return false;
  }
  if (!port.released(request)) return false;
  *moved = true;
  return true;
}

Status ProxyWork::result(ProxyPort& port) const {
  if (request.status.code() != OH_ERR_IN_DOUBT) return request.status;
  Status lost = port.usable();
  return lost.ok() ? Status(OH_ERR_TIMEOUT, kTooLate) : lost;
}

bool ProxyWork::is_released(ProxyPort& port) const {
  return state != State::kPosted || (request.ended() && port.released(request));
}

void ProxyWork::close(ProxyPort& port, const Deadline& until) {
  while (!is_released(port) && !until.passed()) sched_yield();
  // A request in doubt holds a reference to the peer: renew() drops it.
  if (is_released(port)) return renew();
  OH_LOG(kWarn, "%s may still use a buffer of the stream domain: keep its memory",
         port.name().c_str());
}

uint64_t lane_fault_of(const Status& status) {
  switch (status.code()) {
    case OH_OK:
      return OH_LANE_OK;
    case OH_ERR_TRUNCATED:
      return OH_LANE_TRUNCATED;
    case OH_ERR_TIMEOUT:
      return OH_LANE_TIMEOUT;
    case OH_ERR_CANCELLED:
    case OH_ERR_PEER_LOST:
      return OH_LANE_ABORTED;
    default:
      return OH_LANE_FAILED;
  }
}

int64_t deadline_of(const kernels::Ticket& ticket) {
  const uint64_t timeout_ns = onehop::detail::HostAtomics::load_relaxed(&ticket.timeout_ns);
  const int64_t now = now_ns();
  return timeout_ns > static_cast<uint64_t>(INT64_MAX - now)
             ? INT64_MAX
             : now + static_cast<int64_t>(timeout_ns);
}

Status take_late_ticket(ProxyMemory& memory, uint32_t queue, const char* what) {
  using onehop::detail::HostAtomics;
  uint64_t* gave_up = &memory.queue(queue).gave_up;
  if (HostAtomics::load_acquire(gave_up) == OH_LANE_OK) return {};
  HostAtomics::store_relaxed(gave_up, OH_LANE_OK);
  return error(OH_ERR_TIMEOUT,
               "%s was given up: the deadline passed before there was a place for it, or before it "
               "was answered",
               what);
}

}  // namespace oh
