// SPDX-License-Identifier: Apache-2.0
#include "link/link.h"

namespace oh {

Status Link::why_unusable() const {
  if (state() == State::kLost) return why_;
  return error(OH_ERR_LINK, "the link to %s was closed here; %s", name.c_str(), remedy().c_str());
}

Loss Link::loss_of(const Status& why) const {
  if (why.code() == OH_ERR_PROTOCOL) return Loss::kProtocol;
  if (why.code() != OH_ERR_PEER_LOST) return Loss::kFailed;
  return said_goodbye.load(std::memory_order_relaxed) ? Loss::kClosed : Loss::kDied;
}

void Link::observe(Request& request, int64_t now) const {
  const int64_t took = request.took = now - std::exchange(request.began, 0);
  if (!request.status.ok()) return;
  const MetricOp op = request.kind == OpKind::kSend  ? MetricOp::kSend
                      : request.kind == OpKind::kGet ? MetricOp::kGet
                                                     : MetricOp::kPut;
  const int64_t posting = request.posting ? request.posting : took;
  const auto index = static_cast<size_t>(op);
  g_metrics.transfer_time[index][request.path].observe(static_cast<uint64_t>(took));
  g_metrics.post_time[index][request.path].observe(static_cast<uint64_t>(posting));
}

void Link::set_lost(const Status& why) {
  if (!is_open()) return;
  why_ = why;
  g_metrics.count(loss_of(why));
  if (trace) trace->ended(id, TraceKind::kLost, why.code());
  state_.store(State::kLost, std::memory_order_release);
}

Link::State Link::set_closed() {
  if (trace) trace->ended(id, TraceKind::kClosed, OH_OK);
  return state_.exchange(State::kClosed, std::memory_order_acq_rel);
}

std::string Link::remedy() const {
  if (rank < 0) {
    return "connect again: endpoint.connect() on one side, endpoint.accept() on the other";
  }
  return strf(
      "connect again: comm.reconnect(%lld) here, and there comm.reconnect() with our rank, or a "
      "new Communicator in a process that was restarted",
      static_cast<long long>(rank));
}

Status Link::still_there() const {
  if (!connection_ || connection_->is_open()) return {};
  return error(OH_ERR_PEER_LOST, "%s ended while bytes were copied", name.c_str());
}

Status Link::ask_to_serve() {
  {
    LinkGuard guard(*this);
    if (!is_open()) return usable();
    if (std::exchange(asked_to_serve_, true)) return {};
  }
  if (connection_) return connection_->send_control(Control::kServe, {});
  owner_->serve_there();
  return {};
}

void Link::leave_in_doubt(Request& request, const Status& status) {
  StagedCopy* staged = request.staged.get();
  if (staged) staged->in_flight = std::move(request.in_flight);  // with a bounce buffer
  if (staged && !staged->copying()) return finish(request, status);
  request.doubt_peer = keep_alive();
  request.doubts.push_back({.in_flight = std::move(request.in_flight), .staged = request.staged});
  finish(request,
         error(OH_ERR_IN_DOUBT, "%s; %s still has the buffer: keep it until buffer_released()",
               status.text().c_str(), staged ? "a copy engine" : "UCX"));
}

bool Link::make_progress() {
  LinkGuard guard(*this);
  return owner_->progress_locked(nullptr);
}

}  // namespace oh
