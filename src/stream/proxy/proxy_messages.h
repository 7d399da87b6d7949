// SPDX-License-Identifier: Apache-2.0
//
// ProxyMessages: messages between the two proxies of a link, for signals and resets. They arrive in
// order, after all that was sent before them.
//
// Threading: Proxy::mutex_ is held.
#pragma once

#include <deque>
#include <optional>

#include "base/wire.h"
#include "kernels/proxy.h"
#include "lane/proxy_memory.h"
#include "stream/proxy/proxy_port.h"

namespace oh {

struct ProxyMessage {
  enum class Kind : uint8_t { kSignal = 1, kReset = 2 };
  Kind kind;
  uint32_t index;  // slot of a signal, lane of a reset
  uint64_t value;  // count of a signal, new epoch of a reset
};

class ProxyMessages {
 public:
  // `tag`: used by these messages only.
  ProxyMessages(ProxyPort& port, ProxyMemory& memory, uint64_t tag)
      : port_(port), memory_(memory), tag_(tag) {}

  void send(const ProxyMessage& message);
  // The same for a signal's ticket, which is answered when the send has ended.
  void send_signal(const ProxyMessage& message, uint64_t ticket);
  // Posts messages that are not posted yet, and answers tickets of signals whose sends have ended.
  // True: something happened.
  bool flush();
  // The next message that has arrived, if any.
  std::optional<ProxyMessage> receive();

 private:
  struct Outgoing {
    Bytes bytes;
    std::optional<uint64_t> ticket = {};  // of the signal, if it is one
    bool posted = false;
    Request request;
  };
  std::optional<ProxyMessage> parse(ByteView bytes);

  ProxyPort& port_;
  ProxyMemory& memory_;
  const uint64_t tag_;
  std::deque<Outgoing> outgoing_;
  bool receiving_ = false;  // the receive is posted
  uint8_t incoming_[64] = {};
  Request receive_;
};

}  // namespace oh
