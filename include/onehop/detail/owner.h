// SPDX-License-Identifier: Apache-2.0
//
// How the teams of one operation (blocks or clusters of one launch) share a half of a lane: the
// first team takes it, the others join, and the last to leave gives it back.
//
//   owner    token 32 | joined 16 | left 16      loaded in one access with the half's state
//   token    0 | number 31                       stream operation, set by the host
//            1 | launch 15 | number 16           grid operation, set by its kernel
//
// Threading: one thread of each team.
#pragma once

#include "onehop/detail/lane.h"

namespace onehop::detail {

// `number` counts the operations of a launch from 0; all blocks compute the same. grid_follows() is
// the token of no operation: every operation of the launch follows it.
inline constexpr uint32_t kGridToken = 1u << 31;
ONEHOP_PURE uint32_t grid_follows(uint64_t launch) {
  return kGridToken | static_cast<uint32_t>(launch & 0x7fff) << 16;
}
ONEHOP_PURE uint32_t grid_token(uint64_t launch, uint32_t number) {
  return grid_follows(launch) | (1 + number % 0xffff);
}
ONEHOP_PURE bool is_of_grid(uint32_t token) { return (token & kGridToken) != 0; }
// Whether the holder of a half is the operation that `follows` names. A grid operation follows
// every other one of its launch.
ONEHOP_PURE bool is_before(uint32_t holder, uint32_t follows) {
  return holder == follows || (is_of_grid(follows) && (holder ^ follows) >> 16 == 0);
}

// Whether other blocks of the same launch may have held the half before. In all other cases the end
// of a kernel, or a barrier of the launch, makes their stores visible.
ONEHOP_PURE bool is_handed_over(const oh_lane_handle& lane, uint32_t teams) {
  return teams > 1 && lane.follows != 0;
}

// Returns the state at which the first team took the half, or kFailed. Loads the cursor together
// with the owner. If the operation has failed before this team arrives, and the lane has been reset
// since, no team takes the half and the wait times out.
template <typename A>
ONEHOP_PROTOCOL uint64_t join(LaneHalf* half, const oh_lane_handle& lane, uint32_t teams) {
  Patience<A> patience(&lane);
  while (true) {
    const Pair seen = A::load_line(reinterpret_cast<const Pair*>(&half->state));
    // A team that joins must leave, so it does not join a failed half.
    if ((seen.low & kFailed) != 0) return kFailed;
    // If all teams have left, the word is from the previous launch with the same token.
    if (seen.high >> 32 == lane.token && (seen.high & 0xffff) < teams) {
      A::add(&half->owner, kJoined);
      if (is_handed_over(lane, teams)) (void)A::load_acquire(&half->owner);
      return seen.low & ~kBusy;
    }
    if (patience.over()) return kFailed;
  }
}

// `seen`: the owner after this team has left. If the operation has failed, the last team to leave
// gives the half back, even if some teams never joined.
template <typename A>
ONEHOP_PROTOCOL void leave(LaneHalf* half, uint64_t seen) {
  if ((A::load_acquire(&half->state) & kFailed) == 0) return;
  if ((seen >> 16 & 0xffff) != (seen & 0xffff)) return;
  if (A::compare_swap(&half->owner, seen, 0) == seen) A::fetch_and_ordered(&half->state, ~kBusy);
}

// Removes the token of a finished grid operation: a later launch may use it again, with another
// number of teams. Does nothing if the next operation already owns the half. `follows` remains, for
// an operation of this launch that has just found the half busy.
template <typename A>
ONEHOP_PROTOCOL void forget(LaneHalf* half, const oh_lane_handle& lane, uint64_t seen) {
  (void)A::compare_swap(&half->owner, seen, static_cast<uint64_t>(lane.follows) << 32);
}

}  // namespace onehop::detail
