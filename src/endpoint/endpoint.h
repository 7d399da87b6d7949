// SPDX-License-Identifier: Apache-2.0
//
// Endpoint: this process's end. Owns the board, the regions, the peers and the pool of requests;
// knows how to wait.
//
// Threading: any thread. An endpoint belongs to the process that created it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "control/listener.h"
#include "control/node.h"
#include "endpoint/pairing.h"
#include "endpoint/peer.h"
#include "endpoint/readiness.h"
#include "endpoint/requests.h"
#include "endpoint/ucx_watch.h"
#include "endpoint/waiting.h"
#include "link/regions.h"
#include "platform/os/fork.h"

namespace oh {

struct EndpointOptions {
  uint64_t max_inline = 0;  // 0: from the configuration
  bool max_inline_given = false;
  bool progress_thread = false;
  std::string device;  // "cuda:0", a UUID; empty: host memory only
  // For links whose streams need it; null: these have no streams.
  MakeStreamProxy make_proxy = nullptr;
};

// Decides about links that come in for a communicator; set by it.
class LinkGate {
 public:
  virtual ~LinkGate() = default;
  // Whether a link from that rank is wanted; OH_AGAIN: ours to it is under way and wins.
  virtual Status admit(const LinkPurpose& purpose) = 0;
  // Afterwards, one of the two.
  virtual void linked(const LinkPurpose& purpose, std::shared_ptr<Peer> peer) = 0;
  virtual void abandoned(const LinkPurpose& purpose) = 0;
};

class Endpoint final : public Acceptor, public std::enable_shared_from_this<Endpoint> {
 public:
  static Result<std::shared_ptr<Endpoint>> create(const Config& config,
                                                  const EndpointOptions& options);
  ~Endpoint() override;
  void close();

  const Id& id() const { return id_; }
  const Config& config() const { return config_; }
  Node& node() { return *node_; }
  std::shared_ptr<Node> shared_node() { return node_; }
  Bytes address() const { return address_.encode(); }
  // Else this is a child of fork(), where nothing of it may be touched, not even to free it: locks
  // may be held by threads that do not exist here, and memory is shared with the parent's peers.
  bool is_of_this_process() const { return generation_ == fork_generation(); }
  bool is_usable() const {
    return is_of_this_process() && !closed_.load(std::memory_order_relaxed);
  }
  // OH_ERR_FORKED, OH_ERR_CLOSED, or what became of its GPU's context.
  Status usable() const {
    if (!is_usable()) return why_unusable();
    return gpu_ && gpu_->is_lost() ? gpu_->loss() : Status();
  }

  // Why it is not usable.
  Status why_unusable() const;

  // Links.
  Result<std::shared_ptr<Peer>> connect(ByteView address, const LinkPurpose& purpose,
                                        Deadline deadline);
  Result<std::shared_ptr<Peer>> accept(Deadline deadline);
  void set_gate(std::weak_ptr<LinkGate> gate);
  // A link of ours is set up: it takes part in progress from now on.
  Status adopt(const std::shared_ptr<Peer>& peer);
  void forget(const std::shared_ptr<Peer>& peer);
  using Peers = std::vector<std::shared_ptr<Peer>>;
  std::shared_ptr<const Peers> peers() const;
  // Holds the list while `visit` looks at each of it: the list in use may be replaced meanwhile.
  template <typename Visit>
  void for_each_peer(Visit visit) const {
    std::shared_ptr<const Peers> all = peers();
    for (const std::shared_ptr<Peer>& peer : *all) visit(*peer);
  }
  // What becomes of links that come in: admit, then deliver or abandoned.
  Status admit(const LinkPurpose& purpose);
  void deliver(const LinkPurpose& purpose, std::shared_ptr<Peer> peer);
  void abandoned(const LinkPurpose& purpose);

  // Memory.
  // `for_batch`: of a receive of a batch.
  Result<std::shared_ptr<RegionRecord>> register_region(void* base, uint64_t length,
                                                        bool for_batch = false);
  Status deregister(const RegionRecord& region, Deadline deadline);
  // Its descriptor; from now on peers that cannot reach our memory need our progress.
  Bytes export_region(const RegionRecord& region);
  // The same of one that only its peer gets, which moves the bytes itself.
  Bytes describe(const RegionRecord& region) const;
  Result<RemoteTarget> attach(Peer& peer, ByteView descriptor, Deadline deadline);
  // Once for each attach(): what was mapped for it may be unmapped.
  static void detach(const RemoteTarget& target);

  // The GPU of this endpoint; null: it is for host memory only.
  const std::shared_ptr<cuda::Gpu>& gpu() const { return gpu_; }
  // Its worker; null: none is wanted, or there can be none.
  const std::shared_ptr<Worker>& worker() const { return worker_; }
  // Null: for host memory only.
  const std::shared_ptr<StagingPool>& staging() const { return staging_; }
  // Of the pools that transfers with other hosts use; all zero where there is none.
  PoolStats staging_stats() const { return staging_ ? staging_->stats() : PoolStats{}; }
  PoolStats pipeline_stats() const;
  // Near which NUMA node its threads and memory are to be; -1: anywhere.
  int numa_node() const { return gpu_ && config_.numa == "auto" ? gpu_->facts().numa : -1; }
  // Finds out where a request's memory is, and what it has to wait for. Before it is posted.
  Status prepare_memory(Request* request, const AfterOption& after);
  // Lets go of all exports of device memory that overlap the range, here and at the peers.
  void retire_exports(const void* data, uint64_t length);
  // All that no region stands for.
  void trim() { retire_exports(nullptr, UINT64_MAX); }

  // Requests, and waiting for them. acquire() hands one out, which keeps the endpoint alive.
  Requests& requests() { return requests_; }
  Request* acquire() { return requests_.acquire(*this); }

  // The oldest notification, if there is one, whose size is told in any case. OH_ERR_RANGE: it is
  // longer than `capacity`, and stays.
  Result<bool> take_notification(size_t capacity, Notification* notification, size_t* size);
  // Until there is one. Another thread may take it first.
  Status wait_notification(Deadline deadline);
  // What such requests look for; a failure says that it will not come.
  Result<bool> has_notification();
  Result<bool> has_peer();

  // Progress. True when something happened.
  bool progress();
  // The same, but waits for locks, so that no earlier work is left unseen.
  bool progress_thoroughly();
  Status start_progress_thread();
  // Announces the end of the request on the event descriptor of Completions.
  Status arm(Request* request);

  // Starts the progress thread, unless the configuration forbids it.
  void serve();
  // The same at another endpoint of this process.
  void ask_to_serve(const Id& endpoint);
  // Schedules UCX progress on the watcher thread, unless another thread has made it by then.
  void schedule_progress();
  StreamDomain& streams() { return *streams_; }
  Doorbell& doorbell() { return board_->doorbell(); }
  RegionTable& regions() { return *regions_; }
  Notifications& notifications() { return notifications_; }

  // Acceptor.
  const Key& key() const override { return address_.key; }
  const Crypto& crypto() const override { return *crypto_; }
  Bytes greeting() const override;
  void on_memory_gone(uint32_t number) override;
  Result<std::unique_ptr<IncomingLink>> on_offer(IncomingOffer offer) override;

  // For pairing.
  const std::shared_ptr<Board>& board() const { return board_; }
  Limits limits() const;
  uint64_t asked_inline() const { return asked_inline_; }
  // Made when the first link needs it. OH_ERR_NOT_VIABLE: no UCX here, and why.
  Result<std::shared_ptr<UcxWorker>> ucx_worker();
  // Whether links to other processes of this host share memory.
  Status segment_allowed(const char* side) const;
  // A segment that was made ahead, or a fresh one.
  Result<std::unique_ptr<Segment>> take_segment();
  const uint8_t* nonce() const { return nonce_; }
  const Address& own_address() const { return address_; }

 private:
  explicit Endpoint(const Config& config) : config_(config) {}
  Status start(const EndpointOptions& options);
  std::shared_ptr<LinkGate> gate() const;
  void refill_spares();
  void serve_exports();
  Status open_device(const std::string& device);
  void start_worker();
  class UcxEvents;
  bool poll_peers();
  void close_device();
  void sweep_exports();
  static void run_progress_thread(void* context);
  bool serve_tickets();

  Config config_;
  Id id_{};
  Address address_;
  const Crypto* crypto_ = nullptr;
  std::shared_ptr<Node> node_;
  std::shared_ptr<Board> board_;
  std::unique_ptr<RegionTable> regions_;
  std::shared_ptr<cuda::Gpu> gpu_;
  std::shared_ptr<Worker> worker_;
  std::shared_ptr<StagingPool> staging_;
  std::unique_ptr<StreamDomain> streams_;
  uint64_t asked_inline_ = 0;
  uint32_t generation_ = 0;  // of fork()
  std::atomic<bool> closed_{false};
  int closing_ = 0;  // the same, for Deadline::unless(); accessed atomically
  alignas(64) uint8_t nonce_[kNonceSize] = {};

  Requests requests_{*this};
  std::atomic<bool> exported_{false};  // a region of ours is known to others

  // Copied on write: progress reads it without a lock being held for long.
  mutable Mutex peers_mutex_;
  std::shared_ptr<const Peers> peers_ OH_GUARDED_BY(peers_mutex_);
  // Closed peers that were still inside a one-sided operation.
  std::vector<std::shared_ptr<Peer>> closed_inside_ OH_GUARDED_BY(peers_mutex_);
  std::deque<std::shared_ptr<Peer>> accepted_ OH_GUARDED_BY(peers_mutex_);
  std::weak_ptr<LinkGate> gate_ OH_GUARDED_BY(peers_mutex_);

  Mutex ucx_mutex_;
  std::shared_ptr<UcxWatch> ucx_watch_ OH_GUARDED_BY(ucx_mutex_);
  std::atomic<UcxWatch*> ucx_{nullptr};  // the same, until the endpoint is destroyed

  Notifications notifications_;

  Mutex spares_mutex_;
  std::vector<std::unique_ptr<Segment>> spares_ OH_GUARDED_BY(spares_mutex_);

  Mutex progress_mutex_;
  unsigned long progress_thread_ OH_GUARDED_BY(progress_mutex_) = 0;
  std::atomic<bool> stop_progress_{false};
};

}  // namespace oh
