// SPDX-License-Identifier: Apache-2.0
//
// One signal or one wait by all teams of a launch (the blocks of a grid). Each slot has two local
// words by which the teams of an operation coordinate (LaneSignals):
//
//   teams     token 32 | teams 32 that arrived      the last team to arrive signals
//   waits     token 32 | result 16 | teams 16 left  the first team waits; all share its result
//
// Both words are zero once all teams have arrived and left.
//
// Threading: one launch at a time on each word. Each operation ends with a barrier of the group.
#pragma once

#include "onehop/detail/signal.h"

namespace onehop::detail {

// Counts the calling team. Sets `last` if all teams have arrived; the word is then zero again. An
// incomplete operation of another launch is overwritten (replays of a graph are one launch). Waits
// for an earlier signal of the same launch, until `patience` is over.
template <typename A>
ONEHOP_PROTOCOL uint32_t come_to_signal(uint64_t* word, const oh_lane_handle& lane, uint32_t teams,
                                        Patience<A>& patience, bool* last) {
  const uint64_t begun = static_cast<uint64_t>(lane.token) << 32;
  uint64_t had = A::load_relaxed(word);
  uint64_t now = 0;
  while (now == 0) {
    const uint32_t holder = static_cast<uint32_t>(had >> 32);
    if (holder == lane.token) {
      now = A::fetch_add_ordered(word, 1) + 1;
    } else if (static_cast<uint32_t>(had) != 0 && is_before(holder, lane.follows)) {
      if (patience.over()) return patience.fault;
      had = A::load_relaxed(word);
    } else {
      const uint64_t seen = A::compare_swap_ordered(word, had, begun + 1);
      if (seen == had) now = begun + 1;
      had = seen;
    }
  }
  if ((now ^ begun) >> 32 != 0) return OH_LANE_OVERLAP;
  *last = now == begun + teams;
  if (*last) A::store_relaxed(word, 0);
  return OH_LANE_OK;
}

// One signal by all teams of a launch, after everything that any of them has stored. The last team
// to arrive signals.
template <typename A, typename G>
ONEHOP_PROTOCOL uint32_t signal_by_teams(const oh_lane_handle& lane, G& group, uint32_t slot,
                                         uint64_t count) {
  if (slot >= kSignalSlots) return OH_LANE_RANGE;
  group.sync();
  uint32_t fault = OH_LANE_OK;
  if (group.leads()) {
    A::fence();
    Patience<A> patience(&lane, signals_notice(lane));
    uint64_t* word = &reinterpret_cast<LaneSignals*>(lane.signals)->teams[slot];
    bool last = false;
    fault = come_to_signal<A>(word, lane, group.teams(), patience, &last);
    LaneSignals* theirs = reinterpret_cast<LaneSignals*>(lane.their_signals);
    if (last) A::add_remote(&theirs->arrived[slot], count);
  }
  return static_cast<uint32_t>(group.share(fault));
}

// The result field of a wait by teams: in progress, or 2 + its fault.
inline constexpr uint64_t kWaitBegun = uint64_t{1} << 16;
ONEHOP_PURE uint64_t wait_ended(uint32_t fault) { return uint64_t{2 + fault} << 16; }
inline constexpr uint32_t kMostWaiting = 0xffff;  // teams

// The calling team's part of a wait. The first team waits and takes for all; the others wait for
// its result, without a deadline of their own, because that wait ends. The last team to leave
// clears the word. An incomplete operation of another launch is overwritten. Waits for an earlier
// wait of the same launch, until `patience` is over.
template <typename A>
ONEHOP_PROTOCOL uint32_t join_wait(uint64_t* word, const oh_lane_handle& lane, uint32_t teams,
                                   uint32_t slot, uint64_t count) {
  const uint64_t begun = static_cast<uint64_t>(lane.token) << 32 | kWaitBegun;
  Patience<A> patience(&lane, signals_notice(lane));
  uint64_t had = A::load_relaxed(word);
  while (had >> 32 != lane.token) {
    const uint32_t holder = static_cast<uint32_t>(had >> 32);
    if (had != 0 && is_before(holder, lane.follows)) {
      if (patience.over()) return patience.fault;
      had = A::load_relaxed(word);
      continue;
    }
    const uint64_t seen = A::compare_swap_ordered(word, had, begun);
    if (seen == had) {
      const uint64_t ended = begun - kWaitBegun + wait_ended(take_signals<A>(lane, slot, count));
      // Release: passes on what was acquired. Pairs with the add of the other teams.
      if (A::compare_swap_ordered(word, begun, ended) != begun) return OH_LANE_OVERLAP;
      had = ended;
    } else {
      had = seen;
    }
  }
  while (had == begun) {
    A::pause();
    had = A::load_relaxed(word);
  }
  if (had >> 32 != lane.token) return OH_LANE_OVERLAP;
  const uint32_t fault = static_cast<uint32_t>(had >> 16 & 0xffff) - 2;
  const uint64_t now = A::fetch_add_ordered(word, 1) + 1;
  if ((now & kMostWaiting) == teams) A::store_relaxed(word, 0);
  return fault;
}

// One wait by all teams of a launch. Afterwards the peer's earlier stores are visible to all of
// them.
template <typename A, typename G>
ONEHOP_PROTOCOL uint32_t wait_by_teams(const oh_lane_handle& lane, G& group, uint32_t slot,
                                       uint64_t count) {
  if (slot >= kSignalSlots || group.teams() > kMostWaiting) return OH_LANE_RANGE;
  uint32_t fault = OH_LANE_OK;
  if (group.leads()) {
    uint64_t* word = &reinterpret_cast<LaneSignals*>(lane.signals)->waits[slot];
    fault = join_wait<A>(word, lane, group.teams(), slot, count);
  }
  return static_cast<uint32_t>(group.share(fault));
}

}  // namespace onehop::detail
