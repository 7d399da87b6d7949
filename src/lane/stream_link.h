// SPDX-License-Identifier: Apache-2.0
//
// StreamLink: what a peer has for the stream and kernel domains: its lanes, how both sides get to
// know each other's, and how a lane that has failed begins a new epoch. Where kernels may not use
// the link, a proxy has the stream domain instead: at both sides, or at none (stream_way.cc).
//
//   connecting, at each side:
//   MADE ─▶ OPEN ──────▶ MAPPED ─────────▶ READY
//           tells its    theirs, and       theirs have
//           slab         says KERNELS      said so, too
//
//   reset of a lane, at each side:
//   IDLE ─▶ STOPPING ─▶ BEGINNING ─▶ READY ──────▶ OPENING ─▶ IDLE
//           nobody      all is zero,  theirs,       kernels
//           takes it    next epoch    too           take it
//
// A half that the application's kernel has left in its hands is taken from it (holder_watch.h).
//
// A side that is READY tells the other, which begins by that if it has not. Before it is, none of
// its kernels is at the lane; what one has stored late carries the old epoch.
//
// Threading: any thread may prepare, ask and call; all else moves on the watcher's thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lane/holder_watch.h"
#include "lane/lanes.h"
#include "lane/stream_counts.h"
#include "lane/stream_proxy.h"
#include "link/link.h"

namespace oh {

class Connection;

// What it asks of the endpoint.
class StreamHost {
 public:
  virtual ~StreamHost() = default;
  // Runs the task on the watcher's thread, not before that time.
  virtual void later(int64_t at, std::function<void()> task) = 0;
  // Holds what graphs and copies under way may still use, until the endpoint is closed.
  virtual void keep(std::shared_ptr<void> used) = 0;
  // A proxy that the progress thread serves, until proxy_ended().
  virtual Result<std::unique_ptr<StreamProxy>> make_proxy(Link& link,
                                                          std::shared_ptr<ProxyMemory> memory) = 0;
  virtual void proxy_ended() = 0;
  virtual uint64_t stream_slab() = 0;   // bytes
  virtual uint64_t stream_small() = 0;  // bytes
};

// How the messages of streams travel, as one side tells the other.
enum class StreamWay : uint8_t { kNone = 0, kKernels = 1, kProxy = 2, kUnknown = 255 };

class StreamLink {
 public:
  // What is known from the beginning; empty: it can be.
  struct WhyNot {
    std::string at_all;
    std::string by_kernels;
    // What takes milliseconds to find out: asked once, before our side is made. May be null.
    std::function<std::string()> ask_by_kernels;
  };
  StreamLink(Link& link, StreamHost& host, std::shared_ptr<Connection> connection,
             std::shared_ptr<cuda::Gpu> gpu, WhyNot why_not);
  ~StreamLink();
  // Who holds this, and who the host is; before anything else.
  void bind(std::weak_ptr<void> holder, std::weak_ptr<void> host);
  // The two ends of a link within the process; twice the same if it is its own peer.
  static void introduce(StreamLink& one, StreamLink& other);

  // Makes our side and tells the other, once. It is ready when each side has the other's mapped.
  Status prepare();
  bool is_ready() const { return ready_.load(std::memory_order_acquire); }
  // What it is not ready for.
  std::string waits_for() const;
  // Why it cannot be; ok: it can, or is not known yet.
  Status why_not() const;
  // Why kernels may not do it themselves; empty: they may, or it is not known yet.
  std::string why_no_kernels() const;
  // Once it is ready: one of the two.
  bool by_kernels() const { return is_ready() && !by_proxy(); }
  bool by_proxy() const { return by_proxy_.load(std::memory_order_acquire); }
  StreamProxy& proxy() { return *proxy_; }
  // On the progress thread; true when something happened.
  bool serve(Endpoint& endpoint) { return by_proxy() && proxy_->serve(endpoint); }
  // A graph may use the proxy's memory from now on.
  void keep_proxy() { proxy_is_kept_.store(true, std::memory_order_relaxed); }
  // Not before prepare().
  Lanes& lanes() { return *lanes_; }
  bool has_lanes() const { return made_.load(std::memory_order_acquire); }
  StreamCounts& counts() { return counts_; }
  void add_to(Stats* stats) const;

  // The other side may have mapped our memory, or we its.
  void add_import(const std::shared_ptr<ImportedBlock>& block);
  void forget_import(uint32_t number);
  // Memory of ours that the other end within the process may have.
  void forget_within(uint32_t number);
  // For a receive: the peer gets to know the memory, and its number.
  uint32_t publish(const std::shared_ptr<const GpuExport>& exported);

  // Held until what the stream has now is done; for ever if it is being captured.
  void hold(cuda::Stream stream, bool capturing, std::shared_ptr<void> holder);

  // The link is lost or closed: waits of kernels end.
  void abort();
  // Every request has ended: nothing is served any more.
  void close();
  // What went wrong since the last call, the first of it.
  Status take_error();
  // Why a half of a lane takes no more.
  Status failure(uint32_t lane, LaneSide side) {
    return by_proxy() ? proxy_->failure(lane, side) : lanes_->failure(lane, side);
  }

  // Begins a reset unless one is under way, or one more is through than `before`; resets() counts
  // those.
  void reset(uint32_t lane, uint64_t before);
  uint64_t resets(uint32_t lane) const;
  // From its begin until kernels take the lane again: what is launched meanwhile is refused. Not of
  // a link that is lost.
  bool is_resetting(uint32_t lane) const;

  // On the watcher's thread. OH_ERR_PROTOCOL: nonsense.
  Status on_lanes(ByteView payload);
  Status on_ready(ByteView payload);
  Status on_way(ByteView payload);

 private:
  enum class Phase : uint8_t { kIdle, kStopping, kBeginning, kReady, kOpening };
  struct Reset {
    Phase phase = Phase::kIdle;
    bool launched = false;  // the step that it waits for
    uint8_t epoch = 1;      // that the lane has
    bool ready_there = false;
    bool ready_early = false;  // for the reset after this one
    int64_t pause = 0;         // until the next step; 0: the usual one
    HolderWatch holder;
  };
  static constexpr size_t kFewHeld = 16;
  struct Held;  // memory that a copy may be at

  // The other end within the process and its host, or neither: as long as they are held.
  struct Living {
    std::shared_ptr<void> host;
    std::shared_ptr<void> peer;
  };
  Living hold_partner() const;
  // Runs the call on the watcher's thread, if everybody is still there.
  void later(int64_t at, std::function<void()> call);
  void make();
  // Why kernels cannot do it is known from now on, the first of it.
  void rule_out_kernels(const std::string& why);
  void advance();
  void advance_later();
  bool opens();
  void connect();
  void connect_within();
  bool map();
  // How the two sides agree (stream_way.cc).
  void go_by_proxy(const std::string& why);
  Result<bool> make_proxy();
  void tell_way(StreamWay way, const std::string& why);
  void heard_way(StreamWay way);
  void settle_way();
  void tell_lanes();
  void become_ready();
  void heard(uint32_t lane, uint8_t epoch);
  void tell(uint32_t lane, uint8_t epoch);
  void begin(uint32_t lane);
  void step(uint32_t lane);
  void launch(uint32_t lane, Reset& reset);
  void move_on(uint32_t lane, Reset& reset);
  bool is_left(uint32_t lane, Reset& reset, bool busy);
  void step_later(uint32_t lane);
  void settle_later();
  bool drop_held();
  void refuse(Status status);

  Link& link_;
  StreamHost& host_;
  std::shared_ptr<Connection> connection_;  // null within the process
  std::shared_ptr<cuda::Gpu> gpu_;
  const std::function<std::string()> ask_why_no_kernels_;
  std::weak_ptr<void> holder_;
  std::weak_ptr<void> host_life_;
  // Within the process, once they were introduced.
  StreamLink* partner_ = nullptr;
  std::weak_ptr<void> partner_holder_;

  StreamCounts counts_;
  Mutex setup_mutex_;  // held while the driver makes something
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<StreamProxy> proxy_;
  std::atomic<bool> by_proxy_{false};
  std::atomic<bool> proxy_is_kept_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> made_{false};
  std::atomic<bool> open_{false};
  std::atomic<bool> ready_{false};
  std::atomic<bool> aborted_{false};
  mutable Mutex mutex_;
  Status why_not_ OH_GUARDED_BY(mutex_);
  std::string why_no_kernels_ OH_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Held>> held_ OH_GUARDED_BY(mutex_);
  size_t many_held_ OH_GUARDED_BY(mutex_) = kFewHeld;  // from here on they are looked through
  std::atomic<uint64_t> resets_[OH_LANES] = {};
  std::atomic<bool> resetting_[OH_LANES] = {};
  // On the watcher's thread only.
  Reset reset_[OH_LANES];
  bool settling_ = false;
  bool advancing_ = false;
  bool told_ = false;
  StreamWay ours_ = StreamWay::kUnknown;
  StreamWay theirs_ = StreamWay::kUnknown;
  uint32_t their_number_ = 0;
  uint64_t their_bytes_ = 0;
};

}  // namespace oh
