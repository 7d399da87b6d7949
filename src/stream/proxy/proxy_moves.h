// SPDX-License-Identifier: Apache-2.0
//
// ProxyMoves: puts, gets and atomic operations of the stream domain by proxy. The kernel waits
// until the bytes are in the region or in local memory, so later work of its stream, signals
// included, follows them.
//
// Threading: Proxy::mutex_ is held.
#pragma once

#include <array>
#include <unordered_map>

#include "lane/proxy_memory.h"
#include "stream/proxy/proxy_work.h"

namespace oh {

class ProxyMoves {
 public:
  ProxyMoves(ProxyPort& port, ProxyMemory& memory) : port_(port), memory_(memory) {}

  // Tickets may name the region from now on.
  void know(const RemoteTarget& target);
  bool serve();
  Status take_error() { return std::exchange(warned_, Status()); }
  void close(const Deadline& deadline);

 private:
  void take(const kernels::Ticket& ticket);
  Status post(ProxyWork& work, const kernels::ProxyPlace& place);
  // The result of an atomic operation; none: it has not arrived.
  std::optional<Result<uint64_t>> poll_atomic(const ProxyWork& work);
  void finish(ProxyWork& work, const Status& status);
  // `bytes`: bytes moved, or an atomic operation's previous value.
  void answer(ProxyWork& work, const char* what, const Status& status, uint64_t bytes);

  ProxyPort& port_;
  ProxyMemory& memory_;
  uint64_t next_ = 0;
  std::array<ProxyWork, kernels::kTickets> works_;
  // By region index: the latest version that know() was called with.
  std::unordered_map<uint32_t, RemoteTarget> targets_;
  Status warned_;
};

}  // namespace oh
