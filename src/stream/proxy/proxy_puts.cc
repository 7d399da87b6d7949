// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/proxy_puts.h"

#include "onehop/detail/host_atomics.h"

namespace oh {

using kernels::kPutQueue;
using kernels::kTickets;
using kernels::ProxyPlace;
using kernels::Ticket;
using onehop::detail::HostAtomics;

void ProxyPuts::know(const RemoteTarget& target) {
  RemoteTarget& known = targets_[target.index];
  if (known.version < target.version) known = target;
}

bool ProxyPuts::serve() {
  bool any = false;
  if (Status late = take_late_ticket(memory_, kPutQueue, "a put"); !late.ok()) {
    warned_ = std::move(late);
  }
  while (const Ticket* ticket = memory_.ticket(kPutQueue, next_)) {
    take(*ticket);
    any = true;
  }
  for (ProxyWork& work : works_) {
    if (work.state == ProxyWork::State::kPosted && work.poll(port_, &any)) {
      finish(work, work.result(port_));
    }
  }
  return any;
}

// Its place is free: the kernel has seen the answer of the ticket before.
void ProxyPuts::take(const Ticket& ticket) {
  ProxyWork& work = works_[next_ % kTickets];
  work.number = next_++;
  work.data = reinterpret_cast<uint8_t*>(HostAtomics::load_relaxed(&ticket.data));
  work.bytes = HostAtomics::load_relaxed(&ticket.bytes);
  work.deadline = deadline_of(ticket);
  const ProxyPlace place{HostAtomics::load_relaxed(&ticket.place.region),
                         HostAtomics::load_relaxed(&ticket.place.version),
                         HostAtomics::load_relaxed(&ticket.place.offset)};
  const Status posted = post(work, place);
  work.state = ProxyWork::State::kPosted;
  if (!posted.ok()) finish(work, posted);
}

Status ProxyPuts::post(ProxyWork& work, const ProxyPlace& place) {
  auto known = targets_.find(static_cast<uint32_t>(place.region));
  // A later region of the peer may have its index.
  if (known == targets_.end() || known->second.version != place.version) {
    return error(OH_ERR_RETIRED, "the region has been deregistered");
  }
  work.renew();
  work.request.kind = OpKind::kPut;
  work.request.size = work.bytes;
  return port_.put(work.request, known->second, {work.data, place.offset, work.bytes});
}

void ProxyPuts::finish(ProxyWork& work, const Status& status) {
  if (!status.ok()) {
    warned_ = error(status.code(), "a put of %llu bytes: %s",
                    static_cast<unsigned long long>(work.bytes), status.text().c_str());
  }
  work.state = ProxyWork::State::kFree;
  memory_.answer(kPutQueue, work.number, lane_fault_of(status), status.ok() ? work.bytes : 0);
  work.renew();
}

void ProxyPuts::close(const Deadline& deadline) {
  for (ProxyWork& work : works_) work.close(port_, deadline);
}

}  // namespace oh
