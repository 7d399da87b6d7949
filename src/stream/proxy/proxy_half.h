// SPDX-License-Identifier: Apache-2.0
//
// ProxyHalf: one half of a lane by proxy: its tickets become messages in the order of their
// numbers.
//
// Threading: Proxy::mutex_ is held.
#pragma once

#include <array>
#include <string>

#include "lane/proxy_memory.h"
#include "stream/proxy/proxy_work.h"

namespace oh {

class ProxyHalf {
 public:
  // `queue`: index of its queue, less than kProxyLanes.
  ProxyHalf(ProxyPort& port, ProxyMemory& memory, uint32_t queue);

  // Takes tickets, posts them with this tag, and answers those that have ended. True: something
  // happened.
  bool serve(uint64_t tag);
  // Why the half has failed; ok: it has not.
  const Status& failure() const { return failed_; }
  // An error that has not been returned yet; ok: there is none.
  Status take_error();

  // Fails all tickets that kernels have submitted, and all that arrive until end_reset().
  void begin_reset();
  // Ends the operations of the old epoch. True: none remains.
  bool end_all();
  void end_reset();

  void close(const Deadline& deadline);

 private:
  using State = ProxyWork::State;
  bool sends() const { return queue_ < OH_LANES; }
  const char* side() const { return sends() ? "send" : "receive"; }
  uint32_t lane() const { return queue_ % OH_LANES; }
  // Whether the work is a small send, whose kernel does not wait.
  bool is_buffered(const ProxyWork& work) const { return sends() && work.small; }
  ProxyWork& work(uint64_t number) { return works_[number % kernels::kTickets]; }
  bool take_all();
  void take(const kernels::Ticket& ticket);
  bool post(ProxyWork& work, uint64_t tag);
  bool poll(ProxyWork& work);
  void finish(ProxyWork& work, const Status& status);
  void fail(oh_status code, const std::string& why);
  Status warning(oh_status code, const std::string& why) const;

  ProxyPort& port_;
  ProxyMemory& memory_;
  const uint32_t queue_;
  uint64_t oldest_ = 0;  // oldest ticket that has not ended
  uint64_t next_ = 0;    // ticket to take next
  std::array<ProxyWork, kernels::kTickets> works_;
  bool resetting_ = false;
  Status failed_;  // not ok: the half has failed
  Status warned_;
  bool reported_ = false;  // failed_ was returned
};

}  // namespace oh
