// SPDX-License-Identifier: Apache-2.0
//
// LaneResets: how a lane begins a new epoch, both sides in step, where kernels use the link.
//
//   IDLE ─▶ STOPPING ─▶ BEGINNING ─▶ READY ──────▶ OPENING ─▶ IDLE
//           no kernel   all is zero,  the peer is   kernels
//           takes it    next epoch    ready, too    take it
//
// A side that is READY tells the other, which begins its own reset if it has not. Until then none
// of its kernels uses the lane; a late store of one carries the old epoch. A half that the
// application's kernel has left taken is taken from it (holder_watch.h).
//
// Threading: any thread may reset and ask; all else runs on the watcher's thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "base/wire.h"
#include "lane/holder_watch.h"
#include "lane/lanes.h"
#include "lane/stream_domain.h"
#include "link/link.h"

namespace oh {

class Connection;

class LaneResets {
 public:
  // `connection`: null within the process.
  LaneResets(Link& link, const StreamOwners& owners, Connection* connection)
      : link_(link), owners_(owners), connection_(connection) {}
  // The other end within the process, before anything else.
  void introduce(LaneResets& other) {
    partner_ = &other;
    partner_owners_ = other.owners_;
  }
  // Kernels use these lanes from now on.
  void open(Lanes& lanes, std::shared_ptr<cuda::Gpu> gpu);
  // The link is lost or closed: nothing is reset any more.
  void stop() { stopped_.store(true); }

  // Begins a reset unless one is in progress, or one more has ended than `before`; count() counts
  // those.
  void reset(uint32_t lane, uint64_t before);
  uint64_t count(uint32_t lane) const { return counts_[lane].load(std::memory_order_acquire); }
  // From its begin until kernels take the lane again.
  bool is_resetting(uint32_t lane) const {
    return resetting_[lane].load(std::memory_order_acquire) && !stopped_.load();
  }

  // The peer's READY. OH_ERR_PROTOCOL: it is malformed, or kernels do not use the link.
  Status on_ready(ByteView payload);

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

  void begin(uint32_t lane);
  void step_later(uint32_t lane);
  void step(uint32_t lane);
  void launch(uint32_t lane, Reset& reset);
  void advance(uint32_t lane, Reset& reset);
  void end(uint32_t lane, Reset& reset);
  bool is_left(uint32_t lane, Reset& reset, bool busy);
  void tell(uint32_t lane, uint8_t epoch);
  void peer_is_ready(uint32_t lane, uint8_t epoch);

  Link& link_;
  const StreamOwners& owners_;
  Connection* const connection_;
  LaneResets* partner_ = nullptr;  // while partner_owners_ are held
  std::optional<StreamOwners> partner_owners_;
  Lanes* lanes_ = nullptr;  // before others see that the link is ready
  std::shared_ptr<cuda::Gpu> gpu_;
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> counts_[OH_LANES] = {};
  std::atomic<bool> resetting_[OH_LANES] = {};
  Reset reset_[OH_LANES];  // on the watcher's thread only
};

}  // namespace oh
