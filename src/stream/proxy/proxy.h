// SPDX-License-Identifier: Apache-2.0
//
// Proxy: the host's side of the stream domain on a link that kernels cannot use. It takes the
// tickets of kernels (kernels/proxy.h), posts them on the peer as host-domain operations with their
// own tags, and answers them. The peer object chooses the paths.
//
//   ProxyHalf      messages of one half of a lane       ProxyMoves    puts, gets, atomics
//   ProxyResets    new epochs of lanes                  ProxySignals  signals and signal waits
//   ProxyMessages  messages between the two proxies, for signals and resets
//
// Threading: the endpoint's progress thread calls serve(); any thread calls the rest.
#pragma once

#include <deque>
#include <memory>

#include "lane/stream_proxy.h"
#include "link/tags.h"
#include "stream/proxy/proxy_half.h"
#include "stream/proxy/proxy_messages.h"
#include "stream/proxy/proxy_moves.h"
#include "stream/proxy/proxy_port.h"
#include "stream/proxy/proxy_resets.h"
#include "stream/proxy/proxy_signals.h"

namespace oh {

class Proxy final : public StreamProxy {
 public:
  Proxy(std::unique_ptr<ProxyPort> port, std::shared_ptr<ProxyMemory> memory);

  void know(const RemoteTarget& target) override;
  bool serve() override;
  void close() override;
  Status failure(uint32_t lane, LaneSide side) override;
  Status take_error() override;
  void reset(uint32_t lane, uint64_t before) override;
  uint64_t resets(uint32_t lane) const override OH_NO_THREAD_ANALYSIS {
    return resets_.count(lane);
  }
  bool is_resetting(uint32_t lane) override;

 private:
  bool receive() OH_REQUIRES(mutex_);

  const std::unique_ptr<ProxyPort> port_;
  Mutex mutex_;  // taken before the link's lock
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  std::deque<ProxyHalf> halves_ OH_GUARDED_BY(mutex_);  // by queue
  ProxyMessages messages_ OH_GUARDED_BY(mutex_);
  ProxyMoves moves_ OH_GUARDED_BY(mutex_);
  ProxySignals signals_ OH_GUARDED_BY(mutex_);
  ProxyResets resets_ OH_GUARDED_BY(mutex_);
};

// A MakeStreamProxy.
std::unique_ptr<StreamProxy> make_proxy(Endpoint& endpoint, Link& link,
                                        std::shared_ptr<ProxyMemory> memory);

}  // namespace oh
