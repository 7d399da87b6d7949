// SPDX-License-Identifier: Apache-2.0
//
// LaneResets: moves a lane to a new epoch, both sides in step, on a link that kernels use.
//
//   IDLE ─▶ STOPPING ─▶ BEGINNING ─▶ READY ──────▶ OPENING ─▶ IDLE
//           kernels     memory        the peer is   kernels
//           refused     zeroed        READY, too    admitted
//
// A side that is READY notifies the peer, which begins its own reset if it has not. From READY to
// OPENING no kernel of this side uses the lane; a late store by an earlier kernel carries the old
// epoch. A half that an ended kernel of the application still holds is reclaimed (holder_watch.h).
//
// Threading: any thread calls reset(), stop(), count() and is_resetting(); the rest runs on the
// watcher's thread.
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
  // Sets the other end of a link within the process. Call first.
  void introduce(LaneResets& other) {
    partner_ = &other;
    partner_owners_ = other.owners_;
  }
  // Kernels use these lanes from now on.
  void open(Lanes& lanes, std::shared_ptr<cuda::Gpu> gpu);
  // Stops all resets: the link is lost or closed.
  void stop() { stopped_.store(true); }

  // Begins a reset, unless one is in progress or count() differs from `before`. count() is the
  // number of resets that have ended.
  void reset(uint32_t lane, uint64_t before);
  uint64_t count(uint32_t lane) const { return counts_[lane].load(std::memory_order_acquire); }
  // From the beginning of a reset until kernels may take the lane again.
  bool is_resetting(uint32_t lane) const {
    return resetting_[lane].load(std::memory_order_acquire) && !stopped_.load();
  }

  // Handles the peer's READY. OH_ERR_PROTOCOL: it is malformed, or kernels do not use the link.
  Status on_ready(ByteView payload);

 private:
  enum class Phase : uint8_t { kIdle, kStopping, kBeginning, kReady, kOpening };
  struct Reset {
    Phase phase = Phase::kIdle;
    bool launched = false;  // the step of the phase
    uint8_t epoch = 1;      // current epoch
    bool ready_there = false;
    bool ready_early = false;  // the peer is READY for the reset after this one
    int64_t pause = 0;         // ns until the next step; 0: kStepTime
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
  LaneResets* partner_ = nullptr;  // valid while partner_owners_ is held
  std::optional<StreamOwners> partner_owners_;
  Lanes* lanes_ = nullptr;  // set before the link is ready
  std::shared_ptr<cuda::Gpu> gpu_;
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> counts_[OH_LANES] = {};
  std::atomic<bool> resetting_[OH_LANES] = {};
  Reset reset_[OH_LANES];  // on the watcher's thread only
};

}  // namespace oh
