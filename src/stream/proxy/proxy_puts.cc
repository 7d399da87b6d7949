// SPDX-License-Identifier: Apache-2.0
//
// Puts of the stream domain by proxy. The kernel waits until the peer has said that the bytes are
// there, so what its stream does next, a signal too, comes behind them.
#include "base/clock.h"
#include "endpoint/endpoint.h"
#include "onehop/detail/host_atomics.h"
#include "stream/proxy/proxy.h"

namespace oh {

using kernels::kPutQueue;
using kernels::kTickets;
using kernels::ProxyPlace;
using kernels::Ticket;
using onehop::detail::HostAtomics;

void Proxy::know(const RemoteTarget& target) {
  MutexLock lock(mutex_);
  RemoteTarget& known = targets_[target.index];
  if (known.version < target.version) known = target;
}

bool Proxy::serve_puts(Endpoint& endpoint) {
  bool any = false;
  look_for_loss(kPutQueue);
  while (const Ticket* next = ticket(kPutQueue, next_put_)) {
    // Free: its kernel found the ticket before answered.
    Work& work = puts_[next_put_ % kTickets];
    work.number = next_put_++;
    work.data = reinterpret_cast<uint8_t*>(HostAtomics::load_relaxed(&next->data));
    work.bytes = HostAtomics::load_relaxed(&next->bytes);
    work.deadline = deadline_of(*next);
    const ProxyPlace place{HostAtomics::load_relaxed(&next->place.region),
                           HostAtomics::load_relaxed(&next->place.version),
                           HostAtomics::load_relaxed(&next->place.offset)};
    const Status posted = post_put(endpoint, work, place);
    work.state = State::kPosted;
    if (!posted.ok()) end_put(work, posted);
    any = true;
  }
  for (Work& work : puts_) {
    if (work.state == State::kPosted) any = look_after_put(work) || any;
  }
  return any;
}

Status Proxy::post_put(Endpoint& endpoint, Work& work, const ProxyPlace& place) {
  auto known = targets_.find(static_cast<uint32_t>(place.region));
  // A later region of the peer's has its index.
  if (known == targets_.end() || known->second.version != place.version) {
    return error(OH_ERR_RETIRED, "the region has been deregistered");
  }
  Request& request = work.request;
  renew(request);
  request.kind = OpKind::kPut;
  request.endpoint = &endpoint;
  request.size = work.bytes;
  const Block block{work.data, place.offset, work.bytes};
  return link_.peer->operations().move(&request, {.target = known->second,
                                                  .data = work.data,
                                                  .size = work.bytes,
                                                  .after = {.on_device = true},
                                                  .movement = {true, {&block, 1}, 1, work.bytes}});
}

bool Proxy::look_after_put(Work& work) {
  if (!work.request.ended()) {
    if (now_ns() < work.deadline) return false;
    return end_request(work.request, Status(OH_ERR_TIMEOUT, kTooLate));
  }
  if (!link_.peer->operations().buffer_released(&work.request)) return false;
  end_put(work, result_of(work.request));
  return true;
}

void Proxy::end_put(Work& work, const Status& status) {
  if (!status.ok()) {
    warned_ = error(status.code(), "a put of %llu bytes: %s",
                    static_cast<unsigned long long>(work.bytes), status.text().c_str());
  }
  work.state = State::kFree;
  answer(kPutQueue, work.number, fault_of(status), status.ok() ? work.bytes : 0);
  renew(work.request);
}

}  // namespace oh
