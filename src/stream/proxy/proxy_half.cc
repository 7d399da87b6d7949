// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/proxy_half.h"

#include <utility>

#include "onehop/detail/host_atomics.h"

namespace oh {

using kernels::kTickets;
using kernels::Ticket;
using onehop::detail::HostAtomics;

ProxyHalf::ProxyHalf(ProxyPort& port, ProxyMemory& memory, uint32_t queue)
    : port_(port), memory_(memory), queue_(queue) {}

bool ProxyHalf::serve(uint64_t tag) {
  if (HostAtomics::load_acquire(&memory_.queue(queue_).gave_up) != OH_LANE_OK && failed_.ok()) {
    fail(OH_ERR_TIMEOUT, ProxyWork::kTooLate);
  }
  bool any = take_all();
  // Posted in the order of the ticket numbers, since messages match in the order of posting.
  bool in_turn = true;
  for (uint64_t number = oldest_; number < next_; ++number) {
    ProxyWork& work = this->work(number);
    if (work.state == State::kWaiting && in_turn) any = post(work, tag) || any;
    if (work.state == State::kWaiting) in_turn = false;
    if (work.state == State::kPosted) any = poll(work) || any;
    if (work.state == State::kFree && number == oldest_) ++oldest_;
  }
  return any;
}

bool ProxyHalf::take_all() {
  bool any = false;
  while (next_ - oldest_ < kTickets) {
    const Ticket* ticket = memory_.ticket(queue_, next_);
    if (!ticket) break;
    take(*ticket);
    any = true;
  }
  return any;
}

void ProxyHalf::take(const Ticket& ticket) {
  const uint64_t number = next_++;
  ProxyWork& work = this->work(number);
  work.number = number;
  const uint64_t data = HostAtomics::load_relaxed(&ticket.data);
  work.small = data == 0;
  work.bytes = HostAtomics::load_relaxed(&ticket.bytes);
  work.data = work.small ? memory_.payload(queue_, number) : reinterpret_cast<uint8_t*>(data);
  work.deadline = is_buffered(work) ? INT64_MAX : deadline_of(ticket);
  work.state = State::kWaiting;
  if (!is_buffered(work) && !memory_.take(queue_, number)) {
    return finish(work, Status(OH_ERR_TIMEOUT, ProxyWork::kGivenUp));
  }
  const uint64_t asked = HostAtomics::load_relaxed(&ticket.asked);
  if (asked != 0) {
    warned_ = warning(
        OH_ERR_RANGE,
        strf("a size of %llu bytes was read, but at most %llu are there: so many were sent",
             static_cast<unsigned long long>(asked), static_cast<unsigned long long>(work.bytes)));
  }
  if (!failed_.ok()) finish(work, failed_);
}

// False: there is no room now.
bool ProxyHalf::post(ProxyWork& work, uint64_t tag) {
  work.renew();
  Request& request = work.request;
  request.kind = sends() ? OpKind::kSend : OpKind::kRecv;
  request.data = work.data;
  request.size = work.bytes;
  request.tag = tag;
  Status status = port_.post(request, /*on_device=*/!work.small);
  if (status.ok()) {
    work.state = State::kPosted;
    return true;
  }
  if (status.code() == OH_AGAIN && now_ns() < work.deadline) return false;
  if (status.code() == OH_AGAIN) status = Status(OH_ERR_TIMEOUT, ProxyWork::kTooLate);
  finish(work, status);
  return true;
}

bool ProxyHalf::poll(ProxyWork& work) {
  bool moved = false;
  if (!work.poll(port_, &moved)) return moved;
  if (work.request.status.code() == OH_ERR_RETIRED) {
    // The sender has revoked its message: post the receive again for the next one.
    work.state = State::kWaiting;
  } else {
    finish(work, work.result(port_));
  }
  return true;
}

void ProxyHalf::finish(ProxyWork& work, const Status& status) {
  const uint64_t fault = lane_fault_of(status);
  if (!is_buffered(work)) {
    if (status.code() == OH_ERR_TRUNCATED) {
      warned_ = warning(OH_ERR_TRUNCATED, status.text());
    } else if (!status.ok() && failed_.ok()) {
      fail(status.code(), status.text());
    } else if (!status.ok() && resetting_ && warned_.ok()) {
      warned_ = warning(OH_ERR_CANCELLED, "it was ended or refused, for the lane is being reset");
    }
  }
  uint64_t bytes = 0;
  if (fault == OH_LANE_OK) bytes = work.request.nbytes;
  if (fault == OH_LANE_TRUNCATED) bytes = work.request.expected;
  work.state = State::kFree;
  memory_.answer(queue_, work.number, fault, bytes);
  work.renew();
}

void ProxyHalf::fail(oh_status code, const std::string& why) {
  failed_ = error(code, "the %s side of lane %u has failed: %s; oh_peer_reset_lane", side(), lane(),
                  why.c_str());
}

Status ProxyHalf::warning(oh_status code, const std::string& why) const {
  return error(code, "on the %s side of lane %u: %s", side(), lane(), why.c_str());
}

Status ProxyHalf::take_error() {
  if (!failed_.ok() && !std::exchange(reported_, true)) return failed_;
  return std::exchange(warned_, Status());
}

void ProxyHalf::begin_reset() {
  resetting_ = true;
  take_all();
  if (failed_.ok()) {
    fail(OH_ERR_CANCELLED, "it is being reset");
  } else if (!reported_ && warned_.ok()) {
    warned_ = failed_;
  }
  reported_ = true;
}

bool ProxyHalf::end_all() {
  bool all = true;
  for (ProxyWork& work : works_) {
    if (work.state == State::kWaiting) finish(work, failed_);
    if (work.state != State::kPosted) continue;
    if (port_.try_end(work.request, failed_) && port_.released(work.request)) {
      finish(work, work.result(port_));
    } else {
      all = false;
    }
  }
  return all;
}

void ProxyHalf::end_reset() {
  HostAtomics::store_relaxed(&memory_.queue(queue_).gave_up, OH_LANE_OK);
  failed_ = {};
  reported_ = resetting_ = false;
}

void ProxyHalf::close(const Deadline& deadline) {
  for (ProxyWork& work : works_) work.close(port_, deadline);
}

}  // namespace oh
