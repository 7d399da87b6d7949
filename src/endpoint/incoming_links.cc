// SPDX-License-Identifier: Apache-2.0
#include "endpoint/incoming_links.h"

#include <utility>

#include "endpoint/endpoint.h"
#include "platform/os/os.h"

namespace oh {

void IncomingLinks::set_gate(std::weak_ptr<LinkGate> gate) {
  MutexLock lock(mutex_);
  gate_ = std::move(gate);
}

std::shared_ptr<LinkGate> IncomingLinks::gate() const {
  MutexLock lock(mutex_);
  return gate_.lock();
}

Status IncomingLinks::admit(const LinkPurpose& purpose) {
  if (!purpose.for_communicator()) return {};
  std::shared_ptr<LinkGate> gate = this->gate();
  if (!gate) return error(OH_ERR_REFUSED, "the communicator was closed");
  return gate->admit(purpose);
}

void IncomingLinks::deliver(const LinkPurpose& purpose, std::shared_ptr<Peer> peer) {
  if (purpose.for_communicator()) {
    if (std::shared_ptr<LinkGate> gate = this->gate()) gate->linked(purpose, std::move(peer));
  } else {
    MutexLock lock(mutex_);
    accepted_.push_back(std::move(peer));
  }
  endpoint_.doorbell().ring_always();
}

void IncomingLinks::abandoned(const LinkPurpose& purpose) {
  if (!purpose.for_communicator()) return;
  if (std::shared_ptr<LinkGate> gate = this->gate()) gate->abandoned(purpose);
}

std::shared_ptr<Peer> IncomingLinks::take() {
  MutexLock lock(mutex_);
  if (accepted_.empty()) return nullptr;
  std::shared_ptr<Peer> oldest = std::move(accepted_.front());
  accepted_.pop_front();
  return oldest;
}

Result<std::shared_ptr<Peer>> IncomingLinks::accept(Deadline deadline) {
  OH_RETURN_IF_ERROR(endpoint_.usable());
  endpoint_.forget_ended();
  std::shared_ptr<Peer> peer;
  auto arrived = [&] {
    peer = take();
    return peer != nullptr || !endpoint_.is_usable();
  };
  if (!endpoint_.requests().wait_for(arrived, nullptr, WaitKind::kConnect, 0, deadline)) {
    return timed_out(deadline.length(),
                     "no peer connected to this endpoint; does the other side call connect() with "
                     "its address?");
  }
  if (!peer) return error(OH_ERR_CLOSED, "the endpoint was closed while it waited for a peer");
  return peer;
}

Result<bool> IncomingLinks::has_peer() const {
  {
    MutexLock lock(mutex_);
    if (!accepted_.empty()) return true;
  }
  if (!endpoint_.is_usable()) return endpoint_.why_unusable();
  return false;
}

void IncomingLinks::clear() {
  std::deque<std::shared_ptr<Peer>> dropped;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  dropped.swap(accepted_);
}

}  // namespace oh
