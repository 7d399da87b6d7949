// SPDX-License-Identifier: Apache-2.0
//
// StreamProxy: interface of the proxy, which carries out the stream domain's operations on a link
// that kernels cannot use. It takes the tickets that kernels submit (proxy_memory.h) and posts
// operations on the peer, so it is implemented above the peer, in stream/proxy.
//
// Threading: the endpoint's progress thread calls serve(); any thread calls the rest.
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
  // Kernels may submit tickets to the queue from now on.
  void use(uint32_t queue) {
    // release: pairs with is_used(). The launch follows.
    used_[queue / 64].fetch_or(uint64_t{1} << queue % 64, std::memory_order_release);
  }

  // Tickets may name the region from now on.
  virtual void know(const RemoteTarget& target) = 0;

  // Takes tickets and advances their operations. True: something happened.
  virtual bool serve() = 0;
  // Takes no more tickets, and ends waits: the link and every request have ended.
  virtual void close() = 0;
  // Why a half of a lane has failed; ok: it has not.
  virtual Status failure(uint32_t lane, LaneSide side) = 0;
  // An error that has not been returned yet; ok: there is none.
  virtual Status take_error() = 0;

  // See StreamLink.
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

// Creates the proxy of a link. A higher layer passes this function to the endpoint.
using MakeStreamProxy = std::unique_ptr<StreamProxy> (*)(Endpoint& endpoint, Link& link,
                                                         std::shared_ptr<ProxyMemory> memory);

}  // namespace oh
