// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/proxy_messages.h"

#include <memory>

namespace oh {

void ProxyMessages::send(const ProxyMessage& message) {
  Writer writer(outgoing_.emplace_back().bytes);
  writer.u8(static_cast<uint8_t>(message.kind));
  writer.u32(message.index);
  writer.u64(message.value);
}

void ProxyMessages::send_signal(const ProxyMessage& message, uint64_t ticket) {
  send(message);
  outgoing_.back().ticket = ticket;
}

// Posts in order. Messages that a lost link leaves unsent are dropped.
bool ProxyMessages::flush() {
  bool any = false;
  for (Outgoing& message : outgoing_) {
    if (message.posted) continue;
    message.request.kind = OpKind::kSend;
    message.request.data = message.bytes.data();
    message.request.size = message.bytes.size();
    message.request.tag = tag_;
    Status status = port_.post(message.request, /*on_device=*/false);
    if (status.code() == OH_AGAIN) break;
    message.posted = any = true;
    if (!status.ok()) message.request.done.store(1, std::memory_order_relaxed);
  }
  while (!outgoing_.empty() && outgoing_.front().posted && outgoing_.front().request.ended()) {
    if (outgoing_.front().ticket) {
      memory_.answer(kernels::kSignalQueue, *outgoing_.front().ticket, OH_LANE_OK, 0);
    }
    outgoing_.pop_front();
    any = true;
  }
  return any;
}

std::optional<ProxyMessage> ProxyMessages::receive() {
  if (!receiving_) {
    std::destroy_at(&receive_);
    std::construct_at(&receive_);
    receive_.kind = OpKind::kRecv;
    receive_.data = incoming_;
    receive_.size = sizeof(incoming_);
    receive_.tag = tag_;
    if (!port_.post(receive_, /*on_device=*/false).ok()) return {};
    receiving_ = true;
  }
  if (!receive_.ended()) return {};
  receiving_ = false;
  if (receive_.status.ok()) return parse({incoming_, receive_.nbytes});
  // A failed receive would lose signals. Once the link has ended, none arrive.
  if (port_.usable().ok()) {
    port_.accuse(error(OH_ERR_PROTOCOL, "a message of the proxy of %s: %s", port_.name().c_str(),
                       receive_.status.text().c_str()));
  }
  return {};
}

std::optional<ProxyMessage> ProxyMessages::parse(ByteView bytes) {
  Reader reader(bytes);
  ProxyMessage message{};
  message.kind = static_cast<ProxyMessage::Kind>(reader.u8());
  message.index = reader.u32();
  message.value = reader.u64();
  const bool signal =
      message.kind == ProxyMessage::Kind::kSignal && message.index < onehop::detail::kSignalSlots;
  const bool reset = message.kind == ProxyMessage::Kind::kReset && message.index < OH_LANES;
  if (reader.at_end() && (signal || reset)) return message;
  port_.accuse(error(OH_ERR_PROTOCOL, "%s sent a proxy's message of %zu bytes",
                     port_.name().c_str(), bytes.size()));
  return {};
}

}  // namespace oh
