// SPDX-License-Identifier: Apache-2.0
//
// ProxySignals: signals of the stream domain by proxy: signals that kernels send, and slots that
// kernels wait for.
//
// Threading: Proxy::mutex_ is held.
#pragma once

#include <array>

#include "lane/proxy_memory.h"
#include "stream/proxy/proxy_messages.h"

namespace oh {

class ProxySignals {
 public:
  ProxySignals(ProxyMemory& memory, ProxyMessages& messages)
      : memory_(memory), messages_(messages) {}

  // Takes tickets of signals and sends them. True: something happened.
  bool serve_sends();
  // Takes tickets of waits for the slot, and ends waits. `lost`: the link is lost, so no signal
  // arrives any more.
  bool serve_slot(uint32_t index, bool lost);
  // The peer has signalled the slot.
  void arrived(uint32_t index, uint64_t count) { slots_[index].arrived += count; }
  Status take_error() { return std::exchange(warned_, Status()); }

 private:
  struct Wait {
    bool waits = false;
    uint64_t number = 0;
    uint64_t count = 0;
    int64_t deadline = 0;
  };
  struct Slot {
    uint64_t arrived = 0;  // and not consumed by a wait
    uint64_t next = 0;
    std::array<Wait, kernels::kTickets> waits;
  };
  void check_late(uint32_t queue, const char* what);
  void end_wait(uint32_t index, Wait& wait, uint64_t fault, const char* why = "");

  ProxyMemory& memory_;
  ProxyMessages& messages_;
  uint64_t next_ = 0;
  Slot slots_[onehop::detail::kSignalSlots];
  Status warned_;
};

}  // namespace oh
