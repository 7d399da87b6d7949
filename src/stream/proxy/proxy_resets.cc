// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/proxy_resets.h"

namespace oh {

// An epoch takes 2 * OH_LANES tags, of which the lanes use the first half. ProxyMessages uses one
// of the others.
uint64_t ProxyResets::tag(uint32_t lane) const {
  constexpr uint64_t kEpochs = (uint64_t{1} << 48) - 1;
  return first_tag_ + (reset_[lane].epoch & kEpochs) * 2 * OH_LANES + lane;
}

void ProxyResets::reset(uint32_t lane, uint64_t before) {
  if (!reset_[lane].in_progress && count(lane) == before) reset_[lane].wanted = true;
}

void ProxyResets::told(uint32_t lane, uint64_t epoch) {
  reset_[lane].their_epoch = epoch;
  // At once: the next message may follow directly.
  (void)advance(lane);
}

bool ProxyResets::advance(uint32_t lane) {
  Reset& reset = reset_[lane];
  const bool begins = reset.wanted || reset.their_epoch == reset.epoch + 1;
  if (!reset.in_progress && !begins) return false;
  if (!reset.in_progress) {
    reset.in_progress = true;
    reset.wanted = reset.told = false;
    for (LaneSide side : {LaneSide::kSend, LaneSide::kRecv}) half(lane, side).begin_reset();
  }
  if (!reset.told) {
    bool through = true;
    const bool all = end_operations(lane, &through);
    if (!all || !through) return !all;
    // After all that was sent on the lane.
    parts_.messages.send({ProxyMessage::Kind::kReset, lane, reset.epoch + 1});
    reset.told = true;
  }
  if (reset.their_epoch != reset.epoch + 1) return false;
  end(lane);
  return true;
}

// Whether no operation of the lane remains. `through`: its kernels have ended; of a kernel that has
// not begun the host sees only its event.
bool ProxyResets::end_operations(uint32_t lane, bool* through) {
  bool all = true;
  for (LaneSide side : {LaneSide::kSend, LaneSide::kRecv}) {
    all = half(lane, side).end_all() && all;
    *through = parts_.memory.is_through(static_cast<uint32_t>(side) * OH_LANES + lane) && *through;
  }
  return all;
}

void ProxyResets::end(uint32_t lane) {
  // All that the peer sent in the old epoch has arrived, and no receive takes it any more.
  parts_.port.discard(tag(lane));
  for (LaneSide side : {LaneSide::kSend, LaneSide::kRecv}) half(lane, side).end_reset();
  ++reset_[lane].epoch;
  reset_[lane].in_progress = false;
  // release: pairs with count().
  counts_[lane].fetch_add(1, std::memory_order_release);
  parts_.port.wake();
}

}  // namespace oh
