// SPDX-License-Identifier: Apache-2.0
//
// ProxyWork: a ticket that the host executes as a host-domain operation.
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
//                            └──▶ in doubt: the peer may still access the buffer ──▶ FREE
struct ProxyWork {
  static constexpr const char* kTooLate = "the deadline passed before the other side came";
  static constexpr const char* kGivenUp =
      "its kernel went on without it, for this process did not take it until long after the "
      "deadline: was it stopped?";
  enum class State : uint8_t { kFree, kWaiting, kPosted };

  State state = State::kFree;
  bool small = false;  // the bytes are in the payload
  uint64_t number = 0;
  uint64_t bytes = 0;
  uint8_t* data = nullptr;
  int64_t deadline = 0;
  Request request;
  std::optional<uint32_t> atomic;  // the name of an atomic operation, which has no request

  // Replaces the request with a new one, for the next operation.
  void renew();
  // Whether the posted request has ended and its buffer is free; ends it when its deadline passes.
  // `moved`: something happened.
  bool poll(ProxyPort& port, bool* moved);
  // The result of a request whose buffer is free, so that it is no longer in doubt.
  Status result(ProxyPort& port) const;
  // Call as the link closes: waits until the deadline for the buffer to be free.
  void close(ProxyPort& port, const Deadline& deadline);

 private:
  bool is_released(ProxyPort& port) const;
};

// The oh_lane_fault that the kernel gets for this status.
uint64_t lane_fault_of(const Status& status);
int64_t deadline_of(const kernels::Ticket& ticket);
// Returns an error, once, if a kernel gave up because the queue had no free entry or because the
// host had taken its ticket and did not answer it; ok otherwise.
Status take_late_ticket(ProxyMemory& memory, uint32_t queue, const char* what);

}  // namespace oh
