// SPDX-License-Identifier: Apache-2.0
//
// Endpoint: the local end of all links. Owns the subsystems (device, memory, UCX, progress thread,
// requests) and the list of peers, opens links, and makes progress on all of them.
//
// Threading: any thread. An endpoint is valid only in the process that created it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "control/listener.h"
#include "control/node.h"
#include "device/endpoint_device.h"
#include "endpoint/endpoint_memory.h"
#include "endpoint/endpoint_ucx.h"
#include "endpoint/incoming_links.h"
#include "endpoint/notification_inbox.h"
#include "endpoint/pairing.h"
#include "endpoint/peer.h"
#include "endpoint/progress_thread.h"
#include "endpoint/requests.h"
#include "endpoint/stats_page.h"
#include "link/spare_segments.h"
#include "platform/os/fork.h"

namespace oh {

struct EndpointOptions {
  uint64_t max_inline = 0;  // 0: from the configuration
  bool max_inline_given = false;
  bool progress_thread = false;
  std::string device;  // "cuda:0", a UUID; empty: host memory only
  // Creates the stream proxy of a link that needs one; null: such links have no streams.
  MakeStreamProxy make_proxy = nullptr;
};

class Endpoint final : public Acceptor, public std::enable_shared_from_this<Endpoint> {
 public:
  static Result<std::shared_ptr<Endpoint>> create(const Config& config,
                                                  const EndpointOptions& options);
  ~Endpoint() override;
  // All requests have ended when close() returns. A concurrent second call returns when the first
  // has finished.
  void close();

  const Config& config() const { return config_; }
  const std::shared_ptr<Node>& node() const { return node_; }
  // False in a child of fork(). There the endpoint must not be touched or freed: locks may be held
  // by threads that do not exist in the child, and its memory is shared with the parent's peers.
  bool is_of_this_process() const { return generation_ == fork_generation(); }
  bool is_usable() const {
    return is_of_this_process() && !closed_.load(std::memory_order_relaxed);
  }
  // Returns OH_ERR_FORKED, OH_ERR_CLOSED, or the error that destroyed the GPU's context.
  Status usable() const { return is_usable() ? device_.lost() : why_unusable(); }
  Status why_unusable() const;
  // `deadline`, cut short by close(). For waits that nothing else would end sooner.
  Deadline until_closed(Deadline deadline) const { return deadline.unless(&closing_); }

  // Links.
  Result<std::shared_ptr<Peer>> connect(ByteView address, const LinkPurpose& purpose,
                                        Deadline deadline);
  IncomingLinks& incoming() { return incoming_; }
  // Adds an established link to the list, so that it takes part in progress, and starts it.
  Status adopt(const std::shared_ptr<Peer>& peer);
  void forget(const std::shared_ptr<Peer>& peer);
  // Closes the links that have ended and that only this endpoint still references.
  void forget_ended();
  using Peers = std::vector<std::shared_ptr<Peer>>;
  std::shared_ptr<const Peers> peers() const;
  // Visits a snapshot of the list; the list itself may be replaced meanwhile.
  template <typename Visit>
  void for_each_peer(Visit visit) const {
    std::shared_ptr<const Peers> all = peers();
    for (const std::shared_ptr<Peer>& peer : *all) visit(*peer);
  }

  // Subsystems.
  EndpointDevice& device() { return device_; }
  const EndpointDevice& device() const { return device_; }
  EndpointMemory& memory() { return *memory_; }
  EndpointUcx& ucx() { return ucx_; }
  SpareSegments& segments() { return segments_; }
  ProgressThread& progress_thread() { return progress_thread_; }
  StreamDomain& streams() { return *streams_; }
  Requests& requests() { return requests_; }
  NotificationInbox& notifications() { return notifications_; }
  Doorbell& doorbell() { return page_->doorbell(); }

  // Makes progress on all links. Returns true if anything happened.
  bool progress();
  // As progress(), but waits for the links' locks, so that no earlier work is missed.
  bool progress_thoroughly();

  // For pairing.
  const std::shared_ptr<ControlPage>& control_page() const { return page_; }
  Limits limits() const;
  const uint8_t* nonce() const { return nonce_; }
  const Address& own_address() const { return address_; }
  // Null: tracing is off.
  Trace* trace() const { return trace_; }
  // Whether small messages may be sent and received without a request.
  bool has_fast_path() const { return fast_path_; }
  const Crypto& crypto() const override { return *crypto_; }
  Bytes greeting() const override;

 private:
  explicit Endpoint(const Config& config) : config_(config) {}
  Status start(const EndpointOptions& options);

  // Acceptor.
  const Key& key() const override { return address_.key; }
  void on_memory_gone(uint32_t number) override;
  Result<std::unique_ptr<IncomingLink>> on_offer(IncomingOffer offer) override;

  const Config config_;
  Address address_;
  const Crypto* crypto_ = nullptr;
  std::shared_ptr<Node> node_;
  std::shared_ptr<ControlPage> page_;
  Trace* trace_ = nullptr;
  bool fast_path_ = false;
  StatsPage stats_page_{*this};
  EndpointDevice device_;
  std::unique_ptr<EndpointMemory> memory_;
  EndpointUcx ucx_{*this};
  SpareSegments segments_;
  ProgressThread progress_thread_{*this};
  std::unique_ptr<StreamDomain> streams_;
  uint64_t asked_inline_ = 0;
  uint32_t generation_ = 0;  // fork_generation() at creation
  Mutex close_mutex_;        // held for the duration of close()
  std::atomic<bool> closed_{false};
  int closing_ = 0;  // copy of closed_ for Deadline::unless(); accessed with __atomic builtins
  alignas(64) uint8_t nonce_[kNonceSize] = {};

  Requests requests_{*this};
  NotificationInbox notifications_{*this};
  IncomingLinks incoming_{*this};

  // Copy-on-write: progress takes a snapshot and holds the lock only briefly.
  mutable Mutex peers_mutex_;
  std::shared_ptr<const Peers> peers_ OH_GUARDED_BY(peers_mutex_);
};

}  // namespace oh
