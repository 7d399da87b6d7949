// SPDX-License-Identifier: Apache-2.0
//
// ProxyResets: moves a lane to a new epoch, both sides in step, on a link that uses a proxy. Each
// epoch has its own tag.
//
//   IDLE ──▶ ENDING ─────────▶ TOLD ─────────▶ IDLE, next epoch
//            local operations  the peer has    messages of the old epoch are dropped
//            have ended        sent, too
//
// Threading: Proxy::mutex_ is held; count() from any thread.
#pragma once

#include <atomic>
#include <deque>

#include "lane/lane_notices.h"
#include "lane/proxy_memory.h"
#include "stream/proxy/proxy_half.h"
#include "stream/proxy/proxy_messages.h"

namespace oh {

class ProxyResets {
 public:
  // The objects that a reset works on. `first_tag`: the first of the epochs' tags.
  struct Parts {
    ProxyPort& port;
    ProxyMemory& memory;
    std::deque<ProxyHalf>& halves;  // by queue
    ProxyMessages& messages;
  };
  ProxyResets(const Parts& parts, uint64_t first_tag) : parts_(parts), first_tag_(first_tag) {}

  // See StreamLink.
  void reset(uint32_t lane, uint64_t before);
  uint64_t count(uint32_t lane) const { return counts_[lane].load(std::memory_order_acquire); }
  // From when either side requests a reset until kernels may take the lane again.
  bool is_resetting(uint32_t lane) const { return reset_[lane].wanted || reset_[lane].in_progress; }
  // Handles the peer's message that it begins this epoch.
  void told(uint32_t lane, uint64_t epoch);
  bool advance(uint32_t lane);
  // The tag of messages of the lane's current epoch.
  uint64_t tag(uint32_t lane) const;

 private:
  struct Reset {
    bool wanted = false;
    bool in_progress = false;
    bool told = false;
    uint64_t epoch = 0;        // current epoch
    uint64_t their_epoch = 0;  // the epoch that the peer begins
  };
  ProxyHalf& half(uint32_t lane, LaneSide side) {
    return parts_.halves[static_cast<uint32_t>(side) * OH_LANES + lane];
  }
  bool end_operations(uint32_t lane, bool* through);
  void end(uint32_t lane);

  const Parts parts_;
  const uint64_t first_tag_;
  Reset reset_[OH_LANES];
  std::atomic<uint64_t> counts_[OH_LANES] = {};
};

}  // namespace oh
