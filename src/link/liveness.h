// SPDX-License-Identifier: Apache-2.0
//
// Liveness: whether the peer answers, and what the threads of both sides wait for, for the texts of
// timeouts. The two sides probe each other on the control socket (Ping, Pong). Where there is a
// segment, each side publishes its wait there.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <string>

#include "link/connection.h"

namespace oh {

class Link;

enum class WaitKind : uint32_t {
  kNothing = 0,
  kSend,
  kRecv,
  kOneSided,
  kSignal,
  kConnect,
  kSendBatch,
  kRecvBatch,
  kLast = kRecvBatch,
};

// What a thread of one side waits for.
struct Wait {
  WaitKind kind = WaitKind::kNothing;
  uint64_t tag = 0;
};

class Liveness {
 public:
  // `connection` is null within the process.
  Liveness(Link& link, Connection* connection) : link_(link), connection_(connection) {}

  void set_waiting(const Wait& ours);
  // What the peer reports to wait for.
  Wait theirs() const;
  // Nanoseconds since the oldest unanswered probe; sends a probe if none is in flight.
  int64_t unresponsive_for();
  // What the peer waits for, and how long it has been silent, as part of an error text.
  std::string text();

  Status on_ping(ByteView payload);
  Status on_pong(ByteView payload);

 private:
  Link& link_;
  Connection* const connection_;
  // Probes. Times are monotonic, 0 for none.
  std::atomic<int64_t> probe_sent_{0};
  std::atomic<uint64_t> probe_serial_{0};
  std::atomic<uint64_t> probe_answered_{0};
  std::atomic<uint32_t> pong_waiting_{0};
  std::atomic<uint64_t> pong_tag_{0};
  std::atomic<uint32_t> my_waiting_{0};
  std::atomic<uint64_t> my_waiting_tag_{0};
};

}  // namespace oh
