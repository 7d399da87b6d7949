// SPDX-License-Identifier: Apache-2.0
//
// ProxyWork: a ticket that the host executes as an operation of its own.
//
// Threading: Proxy::mutex_ is held.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "kernels/proxy.h"
#include "lane/proxy_memory.h"
#include "stream/proxy/proxy_port.h"

namespace oh {

//   WAITING (its turn) ──▶ POSTED ──▶ FREE, answered
//                            └──▶ in doubt: the other side may still use the buffer ──▶ FREE
struct ProxyWork {
  static constexpr const char* kTooLate = "the deadline passed before the other side came";
  static constexpr const char* kGivenUp =
      "its kernel went on without it, for this process did not take it until long after the "
      "deadline: was it stopped?";
  enum class State : uint8_t { kFree, kWaiting, kPosted };

  State state = State::kFree;
  bool small = false;  // its bytes are in the payload
  uint64_t number = 0;
  uint64_t bytes = 0;
  uint8_t* data = nullptr;
  int64_t deadline = 0;
  Request request;
  std::optional<uint32_t> atomic;  // the name of an atomic operation, which has no request

  // A fresh request, for the next operation.
  void renew();
  // Whether the posted request has ended and its buffer is free; ends it when its deadline passes.
  // `moved`: something happened.
  bool poll(ProxyPort& port, bool* moved);
  // What became of a request whose buffer is free: it is not in doubt any more.
  Status result(ProxyPort& port) const;
  // As the link closes: waits until then for the buffer to be free.
  void close(ProxyPort& port, const Deadline& deadline);

 private:
  bool is_released(ProxyPort& port) const;
};

// The oh_lane_fault that a kernel gets for it.
uint64_t lane_fault_of(const Status& status);
int64_t deadline_of(const kernels::Ticket& ticket);
// What a kernel gave up because the queue had no place for its ticket, or because the host had
// taken that and did not answer, once; ok: nothing.
Status take_late_ticket(ProxyMemory& memory, uint32_t queue, const char* what);

}  // namespace oh
