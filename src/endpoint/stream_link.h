// SPDX-License-Identifier: Apache-2.0
//
// StreamLink: what a peer has for the stream and kernel domains: its lanes, how both sides get to
// know each other's, and how a lane that has failed begins a new epoch.
//
//   reset of a lane, at each side:
//   IDLE ─▶ STOPPING ─▶ BEGINNING ─▶ READY ──────▶ OPENING ─▶ IDLE
//           nobody      all is zero,  theirs,       kernels
//           takes it    next epoch    too           take it
//
// A side that is READY tells the other, which begins by that if it has not. Before it is, none of
// its kernels is at the lane; what one has stored late carries the old epoch.
//
// Threading: any thread may prepare, ask and call; resets move on the watcher's thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "endpoint/lanes.h"
#include "endpoint/pair.h"

namespace oh {

class Connection;

// What it asks of the endpoint.
class StreamHost {
 public:
  virtual ~StreamHost() = default;
  // Runs the task on the watcher's thread, not before that time.
  virtual void later(int64_t at, std::function<void()> task) = 0;
  // Holds what graphs may still use, until the endpoint is closed.
  virtual void keep(std::unique_ptr<Lanes> lanes) = 0;
  virtual uint64_t stream_slab() = 0;   // bytes
  virtual uint64_t stream_small() = 0;  // bytes
};

class StreamLink {
 public:
  // `why_not`: not empty, nothing of it can be.
  StreamLink(Pair& pair, StreamHost& host, std::shared_ptr<Connection> connection,
             std::shared_ptr<cuda::Gpu> gpu, std::string why_not);
  ~StreamLink();
  // Who holds this, and who the host is; before anything else.
  void bind(std::weak_ptr<void> holder, std::weak_ptr<void> host);
  // The two ends of a link within the process; twice the same if it is its own peer.
  static void introduce(StreamLink& one, StreamLink& other);

  // Makes our side and tells the other, once. Then it is ready when both are.
  Status prepare();
  bool is_ready() const { return ready_.load(std::memory_order_acquire); }
  // Why it cannot be; ok: it can, or is not known yet.
  Status why_not() const;
  // Not before prepare().
  Lanes& lanes() { return *lanes_; }
  bool has_lanes() const { return made_.load(std::memory_order_acquire); }

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

  // Begins a reset unless one is under way; resets() counts those that are through.
  void reset(uint32_t lane);
  uint64_t resets(uint32_t lane) const;

  // On the watcher's thread. OH_ERR_PROTOCOL: nonsense.
  Status on_lanes(ByteView payload);
  Status on_ready(ByteView payload);

 private:
  enum class Phase : uint8_t { kIdle, kStopping, kBeginning, kReady, kOpening };
  struct Reset {
    Phase phase = Phase::kIdle;
    uint8_t epoch = 1;  // that the lane has
    bool ready_there = false;
    bool ready_early = false;  // for the reset after this one
  };
  struct Held {
    cuda::Event event = nullptr;
    std::shared_ptr<void> holder;
  };

  // Runs the call on the watcher's thread, if everybody is still there.
  void later(int64_t at, std::function<void()> call);
  Status make();
  Status connect_within();
  void tell_lanes();
  void connect_if_known();
  void heard(uint32_t lane, uint8_t epoch);
  void tell(uint32_t lane, uint8_t epoch);
  void begin(uint32_t lane);
  void step(uint32_t lane);
  void move_on(uint32_t lane, Reset& reset);
  void step_later(uint32_t lane);
  void settle_later();
  void drop_held(bool all);
  void refuse(Status status);

  Pair& pair_;
  StreamHost& host_;
  std::shared_ptr<Connection> connection_;  // null within the process
  std::shared_ptr<cuda::Gpu> gpu_;
  std::weak_ptr<void> holder_;
  std::weak_ptr<void> host_life_;
  // Within the process, once they were introduced.
  StreamLink* partner_ = nullptr;
  std::weak_ptr<void> partner_holder_;

  Mutex setup_mutex_;  // held while the driver makes something
  std::unique_ptr<Lanes> lanes_;
  std::atomic<bool> made_{false};
  std::atomic<bool> ready_{false};
  std::atomic<bool> aborted_{false};
  mutable Mutex mutex_;
  Status why_not_ OH_GUARDED_BY(mutex_);
  bool told_ OH_GUARDED_BY(mutex_) = false;
  uint32_t their_number_ OH_GUARDED_BY(mutex_) = 0;
  uint64_t their_bytes_ OH_GUARDED_BY(mutex_) = 0;
  std::vector<Held> held_ OH_GUARDED_BY(mutex_);
  std::atomic<uint64_t> resets_[OH_LANES] = {};
  Reset reset_[OH_LANES];  // on the watcher's thread only
  bool settling_ = false;  // likewise
};

}  // namespace oh
