// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/proxy_moves.h"

#include "onehop/detail/host_atomics.h"

namespace oh {

using kernels::kMoveQueue;
using kernels::kOfAdd;
using kernels::kOfCompareSwap;
using kernels::kOfGet;
using kernels::kTickets;
using kernels::ProxyPlace;
using kernels::Ticket;
using onehop::detail::HostAtomics;

namespace {
constexpr const char* kAtomic = "an atomic operation";
}  // namespace

void ProxyMoves::know(const RemoteTarget& target) {
  RemoteTarget& known = targets_[target.index];
  if (known.version < target.version) known = target;
}

bool ProxyMoves::serve() {
  bool any = false;
  if (Status late = take_late_ticket(memory_, kMoveQueue, "a put, a get or an atomic operation");
      !late.ok()) {
    warned_ = std::move(late);
  }
  while (const Ticket* ticket = memory_.ticket(kMoveQueue, next_)) {
    take(*ticket);
    any = true;
  }
  for (ProxyWork& work : works_) {
    if (work.state != ProxyWork::State::kPosted) continue;
    if (work.atomic) {
      std::optional<Result<uint64_t>> found = poll_atomic(work);
      if (!found) continue;
      any = true;
      answer(work, kAtomic, found->status(), found->ok() ? **found : 0);
    } else if (work.poll(port_, &any)) {
      finish(work, work.result(port_));
    }
  }
  return any;
}

// Its entry is free: the kernel has seen the answer to the entry's last ticket.
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
  if (posted.ok()) return;
  if (place.region & (kOfAdd | kOfCompareSwap)) return answer(work, kAtomic, posted, 0);
  finish(work, posted);
}

Status ProxyMoves::post(ProxyWork& work, const ProxyPlace& place) {
  if (!memory_.take(kMoveQueue, work.number)) {
    return Status(OH_ERR_TIMEOUT, ProxyWork::kGivenUp);
  }
  const bool adds = place.region & kOfAdd;
  const bool swaps = place.region & kOfCompareSwap;
  auto known = targets_.find(static_cast<uint32_t>(place.region));
  // A later region of the peer may reuse the index.
  if (known == targets_.end() || known->second.version != place.version) {
    return error(OH_ERR_RETIRED, "the region has been deregistered");
  }
  if (adds || swaps) {
    const AtomicOp op{adds ? AtomicOp::Kind::kAdd : AtomicOp::Kind::kCompareSwap,
                      reinterpret_cast<uint64_t>(work.data), work.bytes};
    OH_ASSIGN_OR_RETURN(work.atomic, port_.begin_atomic(known->second, place.offset, op));
    return {};
  }
  return port_.move(work.request, known->second, {work.data, place.offset, work.bytes});
}

std::optional<Result<uint64_t>> ProxyMoves::poll_atomic(const ProxyWork& work) {
  // Queried before take_atomic(): an answer that arrived before the loss counts.
  Status usable = port_.usable();
  std::optional<Result<uint64_t>> found = port_.take_atomic(*work.atomic);
  if (found) return found;
  if (usable.ok() && now_ns() < work.deadline) return std::nullopt;
  port_.abandon_atomic(*work.atomic);
  if (!usable.ok()) return usable;
  return Status(OH_ERR_TIMEOUT,
                "the deadline passed before the peer answered; it may be carried "
                "out yet");
}

void ProxyMoves::finish(ProxyWork& work, const Status& status) {
  const char* name = work.request.kind == OpKind::kGet ? "get" : "put";
  const auto bytes = static_cast<unsigned long long>(work.bytes);
  answer(work, strf("a %s of %llu bytes", name, bytes).c_str(), status, work.bytes);
}

void ProxyMoves::answer(ProxyWork& work, const char* what, const Status& status, uint64_t bytes) {
  if (!status.ok()) warned_ = error(status.code(), "%s: %s", what, status.text().c_str());
  work.state = ProxyWork::State::kFree;
  memory_.answer(kMoveQueue, work.number, lane_fault_of(status), status.ok() ? bytes : 0);
  work.renew();
}

// The result of an abandoned atomic operation stays unknown.
void ProxyMoves::close(const Deadline& deadline) {
  for (ProxyWork& work : works_) {
    if (work.state == ProxyWork::State::kPosted && work.atomic) {
      port_.abandon_atomic(*work.atomic);
      work.state = ProxyWork::State::kFree;
    }
    work.close(port_, deadline);
  }
}

}  // namespace oh
