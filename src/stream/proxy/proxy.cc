// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/proxy.h"

#include <utility>

#include "base/clock.h"
#include "stream/proxy/peer_port.h"

namespace oh {
namespace {
constexpr int64_t kCloseTime = kSecond;
constexpr size_t kAtOnce = 64;  // messages per serve()
}  // namespace

std::unique_ptr<StreamProxy> make_proxy(Endpoint& endpoint, Link& link,
                                        std::shared_ptr<ProxyMemory> memory) {
  return std::make_unique<Proxy>(std::make_unique<PeerPort>(endpoint, link), std::move(memory));
}

Proxy::Proxy(std::unique_ptr<ProxyPort> port, std::shared_ptr<ProxyMemory> memory)
    : StreamProxy(std::move(memory)),
      port_(std::move(port)),
      messages_(*port_, *memory_, kStreamTags + OH_LANES),
      moves_(*port_, *memory_),
      signals_(*memory_, messages_),
      resets_({*port_, *memory_, halves_, messages_}, kStreamTags) {
  for (uint32_t queue = 0; queue < kernels::kProxyLanes; ++queue) {
    halves_.emplace_back(*port_, *memory_, queue);
  }
}

void Proxy::know(const RemoteTarget& target) {
  MutexLock lock(mutex_);
  moves_.know(target);
}

bool Proxy::serve() {
  MutexLock lock(mutex_);
  if (closed_) return false;
  // Queried before receive(): signals that arrived before the loss count.
  const bool lost = !port_->usable().ok();
  bool any = receive();
  for (uint32_t lane = 0; lane < OH_LANES; ++lane) any = resets_.advance(lane) || any;
  for (uint32_t queue = 0; queue < kernels::kProxyLanes; ++queue) {
    if (is_used(queue)) any = halves_[queue].serve(resets_.tag(queue % OH_LANES)) || any;
  }
  if (is_used(kernels::kMoveQueue)) any = moves_.serve() || any;
  if (is_used(kernels::kSignalQueue)) any = signals_.serve_sends() || any;
  for (uint32_t slot = 0; slot < onehop::detail::kSignalSlots; ++slot) {
    if (is_used(kernels::kWaitQueues + slot)) any = signals_.serve_slot(slot, lost) || any;
  }
  return messages_.flush() || any;
}

bool Proxy::receive() {
  bool any = false;
  for (size_t i = 0; i < kAtOnce; ++i) {
    const std::optional<ProxyMessage> message = messages_.receive();
    if (!message) break;
    any = true;
    message->kind == ProxyMessage::Kind::kSignal ? signals_.arrived(message->index, message->value)
                                                 : resets_.told(message->index, message->value);
  }
  return any;
}

// Sets the abort word last: kernels leave their waits when the host no longer uses their buffers.
void Proxy::close() {
  MutexLock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  const Deadline deadline = Deadline::after(kCloseTime);
  for (ProxyHalf& half : halves_) half.close(deadline);
  moves_.close(deadline);
  memory_->abort();
}

Status Proxy::failure(uint32_t lane, LaneSide side) {
  MutexLock lock(mutex_);
  return halves_[static_cast<uint32_t>(side) * OH_LANES + lane].failure();
}

Status Proxy::take_error() {
  MutexLock lock(mutex_);
  Status found;
  for (ProxyHalf& half : halves_) {
    if (found.ok()) found = half.take_error();
  }
  if (found.ok()) found = moves_.take_error();
  if (found.ok()) found = signals_.take_error();
  if (found.ok()) return found;
  return error(found.code(), "with %s: %s", port_->name().c_str(), found.text().c_str());
}

void Proxy::reset(uint32_t lane, uint64_t before) {
  MutexLock lock(mutex_);
  resets_.reset(lane, before);
  port_->wake();
}

bool Proxy::is_resetting(uint32_t lane) {
  MutexLock lock(mutex_);
  return resets_.is_resetting(lane);
}

}  // namespace oh
