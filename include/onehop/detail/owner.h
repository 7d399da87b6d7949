// SPDX-License-Identifier: Apache-2.0
//
// How the teams of one operation, blocks or clusters of one launch, share a half of a lane: the
// first takes it, the others join, and the last to leave gives it back.
//
//   owner    token 32 | joined 16 | left 16      beside the half's state, in one access with it
//   token    0 | number 31                       of an operation of a stream, by the host
//            1 | launch 15 | number 16           of an operation of a grid, by its kernel
//
// Threading: one thread of each team.
#pragma once

#include "onehop/detail/lane.h"

namespace onehop::detail {

// The number is that of the operation in its launch, from 0 on; all blocks find the same. The token
// of no operation of a launch is what its operations follow.
inline constexpr uint32_t kGridToken = 1u << 31;
ONEHOP_PURE uint32_t grid_follows(uint64_t launch) {
  return kGridToken | static_cast<uint32_t>(launch & 0x7fff) << 16;
}
ONEHOP_PURE uint32_t grid_token(uint64_t launch, uint32_t number) {
  return grid_follows(launch) | (1 + number % 0xffff);
}
ONEHOP_PURE bool is_of_grid(uint32_t token) { return (token & kGridToken) != 0; }
// Whether the holder of a half is the operation that `follows` names. An operation of a grid
// follows any other of its launch.
ONEHOP_PURE bool is_before(uint32_t holder, uint32_t follows) {
  return holder == follows || (is_of_grid(follows) && (holder ^ follows) >> 16 == 0);
}

// Whether other blocks of the same launch had the half before. Everybody else finds what they left
// there by the end of a kernel, or by a barrier of its own.
ONEHOP_PURE bool is_handed_over(const oh_lane_handle& lane, uint32_t teams) {
  return teams > 1 && lane.follows != 0;
}

// The state when the first team took it, or kFailed. The cursor is looked at together with the
// owner. A team that comes late may find that its operation has failed, and even that the lane has
// been reset since: then no team takes the half for it.
template <typename A>
ONEHOP_PROTOCOL uint64_t join(LaneHalf* half, const oh_lane_handle& lane, uint32_t teams) {
  Patience<A> patience(&lane);
  while (true) {
    const Pair seen = A::load_line(reinterpret_cast<const Pair*>(&half->state));
    // A team that has joined has to leave, so a failed half is not joined.
    if ((seen.low & kFailed) != 0) return kFailed;
    // One that all have left is of the launch before, with the same token.
    if (seen.high >> 32 == lane.token && (seen.high & 0xffff) < teams) {
      A::add(&half->owner, kJoined);
      if (is_handed_over(lane, teams)) (void)A::load_acquire(&half->owner);
      return seen.low & ~kBusy;
    }
    if (patience.over()) return kFailed;
  }
}

// `seen`: the owner, this team having left. Of an operation that failed the last to leave gives the
// half back, though not all have come.
template <typename A>
ONEHOP_PROTOCOL void leave(LaneHalf* half, uint64_t seen) {
  if ((A::load_acquire(&half->state) & kFailed) == 0) return;
  if ((seen >> 16 & 0xffff) != (seen & 0xffff)) return;
  if (A::compare_swap(&half->owner, seen, 0) == seen) A::fetch_and_ordered(&half->state, ~kBusy);
}

// A grid's operation is over: its token may come again, with another number of teams. The next one
// may be there already; one that has just found the half taken still finds that it follows.
template <typename A>
ONEHOP_PROTOCOL void forget(LaneHalf* half, const oh_lane_handle& lane, uint64_t seen) {
  (void)A::compare_swap(&half->owner, seen, static_cast<uint64_t>(lane.follows) << 32);
}

}  // namespace onehop::detail
