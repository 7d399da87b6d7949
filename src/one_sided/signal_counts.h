// SPDX-License-Identifier: Apache-2.0
//
// SignalCounts: signals from the peer that the local user has not taken, by slot. They arrive in
// the segment, or as frames where they are ordered behind other operations.
//
// Threading: guarded by the link's lock.
#pragma once

#include <array>

#include "link/link.h"

namespace oh {

class SignalCounts {
 public:
  explicit SignalCounts(Link& link) : link_(link) {}

  Status on_frame(const Frame& frame) {
    if (frame.slot >= kSignals) {
      return error(OH_ERR_PROTOCOL, "%s signalled slot %u", link_.name.c_str(), frame.slot);
    }
    by_frame_[frame.slot] += frame.length;
    link_.wake_me = true;
    return {};
  }
  uint64_t waiting(uint32_t slot) const {
    uint64_t came = by_frame_[slot];
    // acquire: bytes put before the signal are visible to the thread that takes it.
    if (link_.segment) {
      came += link_.segment->incoming().signals[slot].load(std::memory_order_acquire);
    }
    return came - taken_[slot];
  }
  // Takes `count`, if that many have arrived.
  bool take(uint32_t slot, uint64_t count) {
    if (waiting(slot) < count) return false;
    taken_[slot] += count;
    return true;
  }

 private:
  Link& link_;
  std::array<uint64_t, kSignals> by_frame_{};
  std::array<uint64_t, kSignals> taken_{};
};

}  // namespace oh
