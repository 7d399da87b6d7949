// SPDX-License-Identifier: Apache-2.0
//
// StreamDomain: what the links of one endpoint share for streams: slab sizes, the watcher's thread,
// the proxies, and memory that outlives its link.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "control/watcher.h"
#include "lane/stream_proxy.h"
#include "memory/control_page.h"

namespace oh {

class StreamDomain {
 public:
  struct Options {
    Watcher& watcher;
    Doorbell& doorbell;  // wakes the progress thread
    uint64_t slab_bytes;
    uint64_t small_max;          // bytes of the largest buffered message
    MakeStreamProxy make_proxy;  // null: no link gets a proxy
    Endpoint* endpoint;          // argument of the two functions
    Status (*start_progress)(Endpoint&);
  };
  explicit StreamDomain(const Options& options) : options_(options) {}

  const Options& options() const { return options_; }
  // Creates a proxy, which the progress thread serves until proxy_ended().
  Result<std::unique_ptr<StreamProxy>> make_proxy(Link& link, std::shared_ptr<ProxyMemory> memory);
  void proxy_ended();
  // The number of proxies. The progress thread polls their tickets.
  const std::atomic<uint32_t>& proxies() const { return proxies_; }

  // Holds `used` until release(), since graphs and copies in flight may still use it; after
  // release() drops it at once.
  void retain(std::shared_ptr<void> used);
  // Call when the endpoint is closed.
  void release();

 private:
  const Options options_;
  std::atomic<uint32_t> proxies_{0};
  Mutex mutex_;
  bool released_ OH_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<void>> retained_ OH_GUARDED_BY(mutex_);
};

// The owners of a link's streams: its peer, and the endpoint with its StreamDomain.
class StreamOwners {
 public:
  explicit StreamOwners(StreamDomain& domain) : domain_(&domain) {}
  StreamDomain& domain() const { return *domain_; }
  // Call first.
  void bind(std::weak_ptr<void> peer, std::weak_ptr<void> endpoint) {
    peer_ = std::move(peer);
    endpoint_ = std::move(endpoint);
  }
  // References to both owners, or to neither.
  struct Held {
    std::shared_ptr<void> endpoint;
    std::shared_ptr<void> peer;
    explicit operator bool() const { return peer != nullptr; }
  };
  Held hold() const;
  // One owner alone; null: it is gone.
  std::shared_ptr<void> peer() const { return peer_.lock(); }
  std::shared_ptr<void> endpoint() const { return endpoint_.lock(); }
  // Runs the call on the watcher's thread at that time, unless an owner is gone by then.
  void later(int64_t at, std::function<void()> call) const;

 private:
  StreamDomain* domain_;
  std::weak_ptr<void> peer_;
  std::weak_ptr<void> endpoint_;
};

}  // namespace oh
