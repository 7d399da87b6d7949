// SPDX-License-Identifier: Apache-2.0
//
// StreamLink: one link for the stream and kernel domains. Both sides agree how messages of streams
// travel. Kernels use the link when each side has mapped the other's slab and the GPUs'
// interconnect supports the kernels' protocol. Otherwise, also when the two sides share no memory,
// both use a proxy. A side that has sent KERNELS sends PROXY later only if it receives PROXY, so a
// choice that both sides have sent is final.
//
//   MADE ─▶ OPEN ──────▶ MAPPED ─────────▶ READY
//           sends its    the peer's slab;  the peer has
//           slab         sends KERNELS     sent KERNELS
//
// lane_resets.h resets lanes; stream_memory.h holds the memory.
//
// Threading: any thread; connecting and the handling of messages run on the watcher's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lane/lane_resets.h"
#include "lane/lanes.h"
#include "lane/stream_counts.h"
#include "lane/stream_domain.h"
#include "lane/stream_memory.h"
#include "lane/stream_proxy.h"
#include "link/link.h"

namespace oh {

class Connection;

// How the messages of streams travel; sent to the peer.
enum class StreamWay : uint8_t { kNone = 0, kKernels = 1, kProxy = 2, kUnknown = 255 };

class StreamLink {
 public:
  // Why streams or kernels cannot use the link, as far as known at creation. Empty: no reason.
  struct WhyNot {
    std::string at_all;
    std::string by_kernels;
    // Takes milliseconds; called once, before this side's lanes are created. May be null.
    std::function<std::string()> ask_by_kernels;
  };
  struct Parts {
    StreamDomain& domain;
    std::shared_ptr<Connection> connection;  // null within the process
    std::shared_ptr<cuda::Gpu> gpu;
  };
  StreamLink(Link& link, Parts parts, WhyNot why_not);
  ~StreamLink();
  // Sets the owners. Call first.
  void bind(std::weak_ptr<void> peer, std::weak_ptr<void> endpoint) {
    owners_.bind(std::move(peer), std::move(endpoint));
  }
  // Connects the two ends of a link within the process. Both are the same object if the endpoint is
  // its own peer.
  static void introduce(StreamLink& one, StreamLink& other);

  // Creates this side's lanes and announces them to the peer, once. The link is ready when both
  // sides have sent the same choice.
  Status prepare();
  bool is_ready() const { return ready_.load(std::memory_order_acquire); }
  // What the link waits for before it is ready.
  std::string waits_for() const;
  // Why streams cannot use the link; ok: they can, or it is not known yet.
  Status why_not() const;
  // Why kernels cannot use the link; empty: they can, or it is not known yet.
  std::string why_no_kernels() const;

  // Once the link is ready, exactly one of the two is true.
  bool by_kernels() const { return is_ready() && !by_proxy(); }
  bool by_proxy() const { return by_proxy_.load(std::memory_order_acquire); }
  Lanes& lanes() { return *lanes_; }
  StreamProxy& proxy() { return *proxy_; }
  StreamMemory& memory() { return memory_; }

  StreamCounts& counts() { return counts_; }
  void add_to(Stats* stats) const;
  // An error that has not been returned yet; ok: there is none.
  Status take_error();
  // Why a half of a lane has failed.
  Status failure(uint32_t lane, LaneSide side) {
    return by_proxy() ? proxy_->failure(lane, side) : lanes_->notices().failure(lane, side);
  }
  // See LaneResets.
  void reset(uint32_t lane, uint64_t before) {
    by_proxy() ? proxy_->reset(lane, before) : resets_.reset(lane, before);
  }
  uint64_t resets(uint32_t lane) const {
    return by_proxy() ? proxy_->resets(lane) : resets_.count(lane);
  }
  bool is_resetting(uint32_t lane) const {
    return by_proxy() ? proxy_->is_resetting(lane) && !aborted_.load() : resets_.is_resetting(lane);
  }

  // Ends the waits of kernels: the link is lost or closed.
  void abort();
  // Stops serving tickets. Call when every request has ended.
  void close();

  // On the watcher's thread. OH_ERR_PROTOCOL: the message is malformed.
  Status on_lanes(ByteView payload);
  Status on_way(ByteView payload);
  Status on_ready(ByteView payload) { return resets_.on_ready(payload); }

 private:
  bool has_lanes() const { return made_.load(std::memory_order_acquire); }
  // Creates this side's lanes, or records why it cannot.
  void make();
  void refuse(Status status);
  void rule_out_kernels(const std::string& why);
  void advance();
  void advance_later();
  bool opens();
  void connect();
  void connect_within();
  bool map();
  void tell_lanes();
  void go_by_proxy(const std::string& why);
  Result<bool> make_proxy();
  void tell_way(StreamWay way, const std::string& why);
  void heard_way(StreamWay way);
  void settle_way();

  Link& link_;
  const std::shared_ptr<Connection> connection_;  // null within the process
  const std::shared_ptr<cuda::Gpu> gpu_;
  const std::function<std::string()> ask_why_no_kernels_;
  StreamOwners owners_;
  StreamLink* partner_ = nullptr;  // within the process; valid while partner_owners_ is held
  std::optional<StreamOwners> partner_owners_;

  StreamCounts counts_;
  Mutex setup_mutex_;  // held during driver allocations
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<StreamProxy> proxy_;
  LaneResets resets_;
  StreamMemory memory_;
  std::atomic<bool> by_proxy_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> made_{false};
  std::atomic<bool> open_{false};
  std::atomic<bool> ready_{false};
  std::atomic<bool> aborted_{false};
  mutable Mutex mutex_;
  Status why_not_ OH_GUARDED_BY(mutex_);
  std::string why_no_kernels_ OH_GUARDED_BY(mutex_);
  // On the watcher's thread only.
  bool advancing_ = false;
  bool told_ = false;
  StreamWay ours_ = StreamWay::kUnknown;
  StreamWay theirs_ = StreamWay::kUnknown;
  uint32_t their_number_ = 0;
  Lanes::Sizes their_sizes_;
};

}  // namespace oh
