// SPDX-License-Identifier: Apache-2.0
//
// PeerPort: posts a proxy's operations on a peer.
//
// Threading: any thread; post() and move() on the endpoint's progress thread.
#pragma once

#include "link/link.h"
#include "stream/proxy/proxy_port.h"

namespace oh {

class Endpoint;

class PeerPort final : public ProxyPort {
 public:
  PeerPort(Endpoint& endpoint, Link& link) : endpoint_(endpoint), link_(link) {}

  const std::string& name() const override { return link_.name; }
  Status usable() override;
  void wake() override { link_.my_bell->ring(); }
  Status post(Request& request, bool on_device) override;
  Status move(Request& request, const RemoteTarget& target, const Block& block) override;
  Result<uint32_t> begin_atomic(const RemoteTarget& target, uint64_t offset,
                                const AtomicOp& op) override {
    return atomics().begin(target, offset, op);
  }
  std::optional<Result<uint64_t>> take_atomic(uint32_t name) override {
    return atomics().take(name);
  }
  void abandon_atomic(uint32_t name) override { atomics().abandon(name); }
  bool try_end(Request& request, const Status& why) override;
  bool released(const Request& request) override;
  void discard(uint64_t tag) override;
  void accuse(const Status& status) override;

 private:
  Atomics& atomics();

  Endpoint& endpoint_;  // may be gone when the link is closed
  Link& link_;
};

}  // namespace oh
