// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/proxy_moves.h"

#include "onehop/detail/host_atomics.h"

namespace oh {

using kernels::kMoveQueue;
using kernels::kOfGet;
using kernels::kTickets;
using kernels::ProxyPlace;
using kernels::Ticket;
using onehop::detail::HostAtomics;

void ProxyMoves::know(const RemoteTarget& target) {
  RemoteTarget& known = targets_[target.index];
  if (known.version < target.version) known = target;
}

bool ProxyMoves::serve() {
  bool any = false;
  if (Status late = take_late_ticket(memory_, kMoveQueue, "a put or get"); !late.ok()) {
    warned_ = std::move(late);
  }
  while (const Ticket* ticket = memory_.ticket(kMoveQueue, next_)) {
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
void ProxyMoves::take(const Ticket& ticket) {
  ProxyWork& work = works_[next_ % kTickets];
  work.number = next_++;
  work.data = reinterpret_cast<uint8_t*>(HostAtomics::load_relaxed(&ticket.data));
  work.bytes = HostAtomics::load_relaxed(&ticket.bytes);
  work.deadline = deadline_of(ticket);
  const ProxyPlace place{HostAtomics::load_relaxed(&ticket.place.region),
                         HostAtomics::load_relaxed(&ticket.place.version),
                         HostAtomics::load_relaxed(&ticket.place.offset)};
  work.renew();
  work.request.kind = place.region & kOfGet ? OpKind::kGet : OpKind::kPut;
  work.request.size = work.bytes;
  const Status posted = post(work, place);
  work.state = ProxyWork::State::kPosted;
  if (!posted.ok()) finish(work, posted);
}

Status ProxyMoves::post(ProxyWork& work, const ProxyPlace& place) {
  if (!memory_.take(kMoveQueue, work.number)) {
    return Status(OH_ERR_TIMEOUT, ProxyWork::kGivenUp);
  }
  auto known = targets_.find(static_cast<uint32_t>(place.region));
  // A later region of the peer may have its index.
  if (known == targets_.end() || known->second.version != place.version) {
    return error(OH_ERR_RETIRED, "the region has been deregistered");
  }
  return port_.move(work.request, known->second, {work.data, place.offset, work.bytes});
}

void ProxyMoves::finish(ProxyWork& work, const Status& status) {
  if (!status.ok()) {
    warned_ = error(status.code(), "a %s of %llu bytes: %s",
                    work.request.kind == OpKind::kGet ? "get" : "put",
                    static_cast<unsigned long long>(work.bytes), status.text().c_str());
  }
  work.state = ProxyWork::State::kFree;
  memory_.answer(kMoveQueue, work.number, lane_fault_of(status), status.ok() ? work.bytes : 0);
  work.renew();
}

void ProxyMoves::close(const Deadline& deadline) {
  for (ProxyWork& work : works_) work.close(port_, deadline);
}

}  // namespace oh
