// SPDX-License-Identifier: Apache-2.0
//
// StreamProxy: who carries the stream domain's operations over a link that kernels may not use. It
// takes the tickets that kernels hand in (proxy_memory.h) and posts operations on the peer, so it
// lives above the peer (stream/proxy); a link knows it by this.
//
// Threading: the endpoint's progress thread serves; any thread calls, asks, and closes.
#pragma once

#include <atomic>
#include <memory>

#include "lane/lanes.h"
#include "lane/proxy_memory.h"

namespace oh {

class Endpoint;
class Link;
struct RemoteTarget;

class StreamProxy {
 public:
  virtual ~StreamProxy() = default;
  StreamProxy(const StreamProxy&) = delete;
  StreamProxy& operator=(const StreamProxy&) = delete;

  const std::shared_ptr<ProxyMemory>& memory() { return memory_; }
  // Kernels may have tickets there from now on.
  void use(uint32_t queue) {
    // release: pairs with is_used(); the launch comes after it.
    used_[queue / 64].fetch_or(uint64_t{1} << queue % 64, std::memory_order_release);
  }

  // Tickets may name the region from now on.
  virtual void know(const RemoteTarget& target) = 0;

  // Takes tickets and moves on what was taken; true when something happened.
  virtual bool serve() = 0;
  // The link is over, and every request with it: no ticket is taken any more, waits end.
  virtual void close() = 0;
  // Why a half of a lane takes no more; ok: it does.
  virtual Status failure(uint32_t lane, LaneSide side) = 0;
  // What went wrong since the last call, the first of it; ok: nothing did.
  virtual Status take_error() = 0;

  // As of StreamLink.
  virtual void reset(uint32_t lane, uint64_t before) = 0;
  virtual uint64_t resets(uint32_t lane) const = 0;
  virtual bool is_resetting(uint32_t lane) = 0;

 protected:
  explicit StreamProxy(std::shared_ptr<ProxyMemory> memory) : memory_(std::move(memory)) {}
  bool is_used(uint32_t queue) const {
    return (used_[queue / 64].load(std::memory_order_acquire) >> queue % 64 & 1) != 0;
  }

  const std::shared_ptr<ProxyMemory> memory_;

 private:
  std::atomic<uint64_t> used_[kernels::kProxyQueues / 64 + 1] = {};
};

// How an endpoint gets one for a link: given to it from above.
using MakeStreamProxy = std::unique_ptr<StreamProxy> (*)(Endpoint& endpoint, Link& link,
                                                         std::shared_ptr<ProxyMemory> memory);

}  // namespace oh
