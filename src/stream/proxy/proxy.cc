// SPDX-License-Identifier: Apache-2.0
//
// Tickets of lanes; proxy_puts.cc has puts, proxy_control.cc signals and resets.
#include "stream/proxy/proxy.h"

#include <sched.h>

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "base/log.h"
#include "endpoint/endpoint.h"
#include "onehop/detail/host_atomics.h"

namespace oh {

using kernels::kProxyLanes;
using kernels::kTickets;
using kernels::Ticket;
using kernels::TicketAnswer;
using onehop::detail::HostAtomics;

namespace {

constexpr int64_t kCloseTime = kSecond;
constexpr const char* kSides[] = {"send", "receive"};

bool sends(uint32_t queue) { return queue < OH_LANES; }

}  // namespace

uint64_t Proxy::fault_of(const Status& status) {
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

std::unique_ptr<StreamProxy> make_proxy(Link& link, std::shared_ptr<ProxyMemory> memory) {
  return std::make_unique<Proxy>(link, std::move(memory));
}

int64_t Proxy::deadline_of(const Ticket& ticket) {
  const uint64_t timeout_ns = HostAtomics::load_relaxed(&ticket.timeout_ns);
  const int64_t now = now_ns();
  return timeout_ns > static_cast<uint64_t>(INT64_MAX - now)
             ? INT64_MAX
             : now + static_cast<int64_t>(timeout_ns);
}

void Proxy::renew(Request& request) {
  std::destroy_at(&request);
  std::construct_at(&request);
}

// The next ticket of a queue, if it is there.
const Ticket* Proxy::ticket(uint32_t queue, uint64_t number) const {
  const Ticket* ticket = &memory_->queue(queue).tickets[number % kTickets];
  // acquire: its fields, and the payload; pairs with run_proxy().
  return HostAtomics::load_acquire(&ticket->number) == number + 1 ? ticket : nullptr;
}

void Proxy::answer(uint32_t queue, uint64_t number, uint64_t fault, uint64_t bytes) {
  TicketAnswer* answer = &memory_->queue(queue).answers[number % kTickets];
  HostAtomics::store_relaxed(&answer->bytes, bytes);
  HostAtomics::store_relaxed(&answer->fault, fault);
  // release: the rest, and what came; pairs with run_proxy().
  HostAtomics::store_release(&answer->number, number + 1);
}

bool Proxy::serve(Endpoint& endpoint) {
  MutexLock lock(mutex_);
  if (closed_) return false;
  // Asked first: what a peer signalled before it was lost counts.
  lost_ = !link_.peer->usable().ok();
  bool any = hear(endpoint);
  for (uint32_t lane = 0; lane < OH_LANES; ++lane) any = move_reset(lane) || any;
  for (uint32_t queue = 0; queue < kProxyLanes; ++queue) {
    if (is_used(queue)) any = serve_half(endpoint, queue) || any;
  }
  if (is_used(kernels::kPutQueue)) any = serve_puts(endpoint) || any;
  if (is_used(kernels::kSignalQueue)) any = take_signals() || any;
  for (uint32_t slot = 0; slot < onehop::detail::kSignalSlots; ++slot) {
    if (is_used(kernels::kWaitQueues + slot)) any = serve_slot(slot) || any;
  }
  return speak(endpoint) || any;
}

bool Proxy::serve_half(Endpoint& endpoint, uint32_t queue) {
  Half& half = halves_[queue];
  bool any = false;
  if (HostAtomics::load_acquire(&memory_->queue(queue).gave_up) != OH_LANE_OK && half.failed.ok()) {
    fail(queue, OH_ERR_TIMEOUT, kTooLate);
  }
  any = take_all(queue) || any;
  // In the order of their numbers, which is that of matching.
  bool in_turn = true;
  for (uint64_t number = half.oldest; number < half.next; ++number) {
    Work& work = half.works[number % kTickets];
    if (work.state == State::kWaiting && in_turn) any = post(endpoint, queue, work) || any;
    if (work.state == State::kWaiting) in_turn = false;
    if (work.state == State::kPosted) any = look_after(queue, work) || any;
    if (work.state == State::kFree && number == half.oldest) ++half.oldest;
  }
  return any;
}

bool Proxy::take_all(uint32_t queue) {
  Half& half = halves_[queue];
  bool any = false;
  while (half.next - half.oldest < kTickets) {
    const Ticket* next = ticket(queue, half.next);
    if (!next) break;
    take(queue, *next);
    any = true;
  }
  return any;
}

void Proxy::take(uint32_t queue, const Ticket& ticket) {
  Half& half = halves_[queue];
  const uint64_t number = half.next++;
  Work& work = half.works[number % kTickets];
  work.number = number;
  const uint64_t data = HostAtomics::load_relaxed(&ticket.data);
  work.small = data == 0;
  work.bytes = HostAtomics::load_relaxed(&ticket.bytes);
  work.data = work.small ? memory_->payload(queue, number) : reinterpret_cast<uint8_t*>(data);
  const bool handed_over = sends(queue) && work.small;
  work.deadline = handed_over ? INT64_MAX : deadline_of(ticket);
  work.state = State::kWaiting;
  const uint64_t asked = HostAtomics::load_relaxed(&ticket.asked);
  if (asked != 0) {
    half.warned = error(OH_ERR_RANGE,
                        "on the send side of lane %u: a size of %llu bytes was read, but at most "
                        "%llu are there: so many were sent",
                        queue % OH_LANES, static_cast<unsigned long long>(asked),
                        static_cast<unsigned long long>(work.bytes));
  }
  if (!half.failed.ok()) finish(queue, work, half.failed);
}

// False: there is no room for it now.
bool Proxy::post(Endpoint& endpoint, uint32_t queue, Work& work) {
  Request& request = work.request;
  renew(request);
  request.kind = sends(queue) ? OpKind::kSend : OpKind::kRecv;
  request.endpoint = &endpoint;
  request.data = work.data;
  request.size = work.bytes;
  request.tag = tag_of(queue % OH_LANES);
  AfterOption plain;
  plain.on_device = true;
  Status status = work.small ? Status() : endpoint.prepare_memory(&request, plain);
  if (status.ok()) {
    status = sends(queue) ? link_.peer->operations().post_send(&request)
                          : link_.peer->operations().post_recv(&request);
  }
  if (status.ok()) {
    work.state = State::kPosted;
    return true;
  }
  if (status.code() == OH_AGAIN && now_ns() < work.deadline) return false;
  if (status.code() == OH_AGAIN) status = Status(OH_ERR_TIMEOUT, kTooLate);
  finish(queue, work, status);
  return true;
}

bool Proxy::look_after(uint32_t queue, Work& work) {
  Request& request = work.request;
  if (!request.ended()) {
    if (now_ns() < work.deadline) return false;
    return end_request(request, Status(OH_ERR_TIMEOUT, kTooLate));
  }
  if (!link_.peer->operations().buffer_released(&request)) return false;
  if (request.status.code() == OH_ERR_RETIRED) {
    // The sender took it back: the receive waits for the next one.
    work.state = State::kWaiting;
  } else {
    finish(queue, work, result_of(request));
  }
  return true;
}

// True when it has ended. Without shared memory the peer may stop in the midst of a message, which
// then is left in doubt: until engines and UCX are through, and not until the peer goes on.
bool Proxy::end_request(Request& request, const Status& why) {
  Peer& peer = *link_.peer;
  return peer.operations().try_end(&request, why, Operations::Force::kDeadline) ||
         (!link_.segment && peer.operations().try_end(&request, why, Operations::Force::kGiveUp));
}

// Of one whose buffer is free: it is in doubt no more.
Status Proxy::result_of(const Request& request) const {
  if (request.status.code() != OH_ERR_IN_DOUBT) return request.status;
  Status lost = link_.peer->usable();
  return lost.ok() ? Status(OH_ERR_TIMEOUT, kTooLate) : lost;
}

void Proxy::finish(uint32_t queue, Work& work, const Status& status) {
  Half& half = halves_[queue];
  const bool handed_over = sends(queue) && work.small;
  const uint64_t fault = fault_of(status);
  if (status.code() == OH_ERR_TRUNCATED && !handed_over) {
    half.warned = error(OH_ERR_TRUNCATED, "on the %s side of lane %u: %s", kSides[queue / OH_LANES],
                        queue % OH_LANES, status.text().c_str());
  } else if (!status.ok() && half.failed.ok() && !handed_over) {
    fail(queue, status.code(), status.text());
  } else if (!status.ok() && !handed_over && reset_[queue % OH_LANES].under_way &&
             half.warned.ok()) {
    half.warned = error(OH_ERR_CANCELLED,
                        "on the %s side of lane %u: it was ended or refused, for the lane is being "
                        "reset",
                        kSides[queue / OH_LANES], queue % OH_LANES);
  }
  const Request& request = work.request;
  const uint64_t bytes = fault == OH_LANE_TRUNCATED ? request.expected : request.nbytes;
  work.state = State::kFree;
  answer(queue, work.number, fault, fault == OH_LANE_OK || fault == OH_LANE_TRUNCATED ? bytes : 0);
  renew(work.request);
}

void Proxy::fail(uint32_t queue, oh_status code, const std::string& why) {
  halves_[queue].failed = error(code, "the %s side of lane %u has failed: %s; oh_peer_reset_lane",
                                kSides[queue / OH_LANES], queue % OH_LANES, why.c_str());
}

// Whether nothing of the half is under way any more.
bool Proxy::end_all(uint32_t queue) {
  Half& half = halves_[queue];
  bool all = true;
  for (Work& work : half.works) {
    if (work.state == State::kWaiting) finish(queue, work, half.failed);
    if (work.state != State::kPosted) continue;
    if (end_request(work.request, half.failed) &&
        link_.peer->operations().buffer_released(&work.request)) {
      finish(queue, work, result_of(work.request));
    } else {
      all = false;
    }
  }
  return all;
}

// An epoch has its own; those between the lanes' of one and the next are not theirs.
uint64_t Proxy::tag_of(uint32_t lane) const {
  constexpr uint64_t kEpochs = (uint64_t{1} << 48) - 1;
  return kFirstTag + (reset_[lane].epoch & kEpochs) * 2 * OH_LANES + lane;
}

// What has ended is answered by the abort word, which comes last.
void Proxy::close() {
  MutexLock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  const Deadline deadline = Deadline::after(kCloseTime);
  auto in_use = [this](const Work& work) {
    return work.state == State::kPosted &&
           !(work.request.ended() && link_.peer->operations().buffer_released(&work.request));
  };
  auto end = [&](Work& work) {
    while (in_use(work) && !deadline.passed()) sched_yield();
    // One in doubt holds the peer.
    if (!in_use(work)) return renew(work.request);
    OH_LOG(kWarn, "%s may still be at a buffer of the stream domain: keep its memory",
           link_.name.c_str());
  };
  for (Half& half : halves_) std::ranges::for_each(half.works, end);
  std::ranges::for_each(puts_, end);
  memory_->abort();
}

Status Proxy::failure(uint32_t lane, LaneSide side) {
  MutexLock lock(mutex_);
  return halves_[static_cast<uint32_t>(side) * OH_LANES + lane].failed;
}

Status Proxy::take_error() {
  MutexLock lock(mutex_);
  auto with_name = [this](const Status& status) {
    return error(status.code(), "with %s: %s", link_.name.c_str(), status.text().c_str());
  };
  for (Half& half : halves_) {
    if (!half.failed.ok() && !std::exchange(half.told, true)) return with_name(half.failed);
    if (!half.warned.ok()) return with_name(std::exchange(half.warned, Status()));
  }
  return warned_.ok() ? Status() : with_name(std::exchange(warned_, Status()));
}

}  // namespace oh
