// SPDX-License-Identifier: Apache-2.0
//
// Signals between kernels: a count per peer and slot. Waits consume counts, so each replay of a
// graph waits for the signals of that replay. Signals belong to no lane.
//
//   arrived   in local memory, added to by the peer
//   taken     added to by local waits
//   teams     token 32 | teams 32: blocks of a local grid that have reached a signal
//   waits     token 32 | result 16 | teams 16: blocks of a local grid that have left a wait
//
// The count of a slot is `arrived` minus `taken`.
//
// Threading: any number of groups concurrently, also on the same slot. Waits, reads and barrier()
// end with a barrier of the group.
#pragma once

#include "onehop/detail/owner.h"

namespace onehop::detail {

// Adds `count` to the peer's slot, after everything that the group has stored. Returns false if
// there is no such slot.
template <typename A, typename G>
ONEHOP_PROTOCOL bool signal(const oh_lane_handle& lane, G& group, uint32_t slot, uint64_t count) {
  if (slot >= kSignalSlots) return false;
  group.sync();
  LaneSignals* signals = reinterpret_cast<LaneSignals*>(lane.their_signals);
  if (group.leads()) A::add_remote(&signals->arrived[slot], count);
  return true;
}

// Adds without any order.
template <typename A, typename G>
ONEHOP_PROTOCOL bool relaxed_signal(const oh_lane_handle& lane, G& group, uint32_t slot,
                                    uint64_t count) {
  if (slot >= kSignalSlots) return false;
  LaneSignals* signals = reinterpret_cast<LaneSignals*>(lane.their_signals);
  if (group.leads()) A::add_remote_relaxed(&signals->arrived[slot], count);
  return true;
}

// Sets `arrived` of a peer's slot from which no wait takes. Otherwise as signal().
template <typename A, typename G>
ONEHOP_PROTOCOL bool set_signal(const oh_lane_handle& lane, G& group, uint32_t slot,
                                uint64_t count) {
  if (slot >= kSignalSlots) return false;
  group.sync();
  LaneSignals* signals = reinterpret_cast<LaneSignals*>(lane.their_signals);
  if (group.leads()) A::store_release(&signals->arrived[slot], count);
  return true;
}

// The count of a slot. Reads `taken` after `arrived`, so the result never exceeds the true count.
// Acquire: pairs with signal() and set_signal().
template <typename A>
ONEHOP_PROTOCOL uint64_t count_signals(const oh_lane_handle& lane, uint32_t slot) {
  const LaneSignals* signals = reinterpret_cast<const LaneSignals*>(lane.signals);
  const uint64_t arrived = A::load_acquire(&signals->arrived[slot]);
  const uint64_t taken = A::load_relaxed(&signals->taken[slot]);
  return arrived > taken ? arrived - taken : 0;
}

// Reads the count. Checks the host's word each time, so that a loop of reads ends too.
template <typename A, typename G>
ONEHOP_PROTOCOL uint32_t read_signal(const oh_lane_handle& lane, G& group, uint32_t slot,
                                     uint64_t* count) {
  *count = 0;
  if (slot >= kSignalSlots) return OH_LANE_RANGE;
  uint64_t found = 0;
  uint64_t aborted = 0;
  if (group.leads()) {
    aborted = A::load_relaxed(&signals_notice(lane)->abort.word);
    found = count_signals<A>(lane, slot);
  }
  *count = group.share(found);
  return group.share(aborted) != 0 ? OH_LANE_ABORTED : OH_LANE_OK;
}

// Waits until the count is at least `least`. Takes nothing.
template <typename A, typename G>
ONEHOP_PROTOCOL uint32_t wait_until_signal(const oh_lane_handle& lane, G& group, uint32_t slot,
                                           uint64_t least) {
  if (slot >= kSignalSlots) return OH_LANE_RANGE;
  Patience<A> patience(&lane, signals_notice(lane));
  if (group.leads()) {
    while (count_signals<A>(lane, slot) < least && !patience.over()) {
    }
  }
  return static_cast<uint32_t>(group.share(patience.fault));
}

// One thread waits for `count` signals and takes them. A wait that fails takes none. Acquire: pairs
// with signal().
template <typename A>
ONEHOP_PROTOCOL uint32_t take_signals(const oh_lane_handle& lane, uint32_t slot, uint64_t count) {
  Patience<A> patience(&lane, signals_notice(lane));
  LaneSignals* signals = reinterpret_cast<LaneSignals*>(lane.signals);
  uint64_t* taken = &signals->taken[slot];
  uint64_t had = A::load_relaxed(taken);
  while (true) {
    const uint64_t arrived = A::load_acquire(&signals->arrived[slot]);
    // `taken` may be newer than `arrived`, and larger.
    if (arrived >= had && arrived - had >= count) {
      const uint64_t seen = A::compare_swap(taken, had, had + count);
      if (seen == had) return OH_LANE_OK;
      had = seen;
    } else {
      if (patience.over()) return patience.fault;
      had = A::load_relaxed(taken);
    }
  }
}

template <typename A, typename G>
ONEHOP_PROTOCOL uint32_t wait_signal(const oh_lane_handle& lane, G& group, uint32_t slot,
                                     uint64_t count) {
  if (slot >= kSignalSlots) return OH_LANE_RANGE;
  const uint32_t fault = group.leads() ? take_signals<A>(lane, slot, count) : uint32_t{OH_LANE_OK};
  return static_cast<uint32_t>(group.share(fault));
}

// Each thread signals some of the other ranks, after everything that the group has stored, and then
// waits for their signals. Returns the same fault to all threads.
template <typename A, typename G>
ONEHOP_PROTOCOL uint32_t barrier(const oh_comm_handle& comm, G& group, uint32_t slot) {
  if (slot >= kSignalSlots || comm.size > OH_DEVICE_RANKS) return OH_LANE_RANGE;
  group.sync();
  for (uint32_t rank = group.rank(); rank < comm.size; rank += group.size()) {
    if (rank == comm.rank) continue;
    A::add_remote(&reinterpret_cast<LaneSignals*>(comm.ranks[rank].their_signals)->arrived[slot],
                  uint64_t{1});
  }
  uint32_t fault = OH_LANE_OK;
  for (uint32_t rank = group.rank(); rank < comm.size; rank += group.size()) {
    if (rank == comm.rank) continue;
    const uint32_t found = take_signals<A>(comm.ranks[rank], slot, 1);
    if (found != OH_LANE_OK) fault = found;
  }
  // The vote is also a barrier: what one thread acquired becomes visible to all.
  if (!group.any(fault != OH_LANE_OK)) return OH_LANE_OK;
  return group.any(fault == OH_LANE_ABORTED) ? OH_LANE_ABORTED : OH_LANE_TIMEOUT;
}

}  // namespace onehop::detail
