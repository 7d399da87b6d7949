// SPDX-License-Identifier: Apache-2.0
//
// Lanes: the memory that each side of a peer keeps on its GPU for messages between kernels, how an
// operation takes one half of a lane (sending or receiving), and how its waits end.
//
//   memory of a lane     written by           read by
//   tx, rx               local kernels        local kernels: cursors and the owner
//   credit               peer's receiver      local sender: lines that the peer has read
//   posted               peer's receiver      local sender: target of a large message
//   filled               peer's sender        local receiver: chunks that have arrived
//   emptied              peer's receiver      local sender: chunks that the peer has drained
//   lines, chunks        peer's sender        local receiver
//
// So a waiter polls memory of its own GPU. With kSingle the local sender's credit lies in the
// peer's memory instead (kept_*).
//
//   state    epoch 8 | failed 1 | 0 | busy 1 | lines 53      lines: the cursor
//   owner    token 32 | joined 16 | left 16                  of an operation by several blocks
//
// One atomic operation takes a half and returns its cursor. So concurrent operations detect each
// other, and the user passes no counter or index.
//
// Threading: one operation at a time on a half; it may consist of several teams (Group).
#pragma once

#include "onehop/detail/cursor.h"
#include "onehop/lane.h"

namespace onehop::detail {

// Whether senders poll their credit in the receiver's memory: for comparisons. A type of atomics
// specializes it, which both sides of a lane must use from its first message on.
template <typename A>
inline constexpr bool kSingle = false;

inline constexpr uint32_t kMostChunks = 64;

struct alignas(64) LaneHalf {
  uint64_t state;  // loaded in one access with the owner
  uint64_t owner;
  uint64_t chunks;   // cursor of the staged ring
  uint64_t through;  // tx: lines that the peer is known to have read; rx: lines credited to it
  uint64_t route;    // tx: of a large message, from the first team to the others
  uint64_t routed;   // 1 + the position of that message, stored after its route
  uint64_t put;      // tx: large messages put directly into the receive buffer
  uint64_t staged;   // tx: large messages that went through chunks
};

struct LaneMemory {
  LaneHalf tx;
  LaneHalf rx;
  alignas(64) uint64_t credit;
  alignas(64) Pair posted[2];
  alignas(64) uint64_t filled[kMostChunks];
  alignas(64) uint64_t emptied[kMostChunks];
  alignas(64) uint64_t kept_credit;  // kSingle: written by the local receiver
  alignas(64) uint64_t kept_emptied[kMostChunks];
};

// In mapped host memory, one per lane, and one for signals. Index 0: tx, 1: rx.
struct alignas(64) LaneNotice {
  struct alignas(64) {
    uint64_t word;       // set by the host; not 0: waits end
    uint64_t resetting;  // set by the host; not 0: operations that find the lane failed report it
  } abort;
  struct alignas(64) {
    uint64_t fault;  // by kernels: an oh_lane_fault, stored after the rest
    uint64_t bytes;  // of the message
    uint64_t capacity;
    uint64_t position;
  } failed[2], warned[2];  // failed: the half takes no further operation; warned: it continues
  struct alignas(64) {
    uint64_t put;     // by kernels: LaneHalf::put of the sending half
    uint64_t staged;  // likewise
  } large;
};

// Signals from the peer, and the part of them that local waits have taken.
inline constexpr uint32_t kSignalSlots = 64;
struct LaneSignals {
  alignas(64) uint64_t arrived[kSignalSlots];  // written by the peer
  alignas(64) uint64_t taken[kSignalSlots];    // the others: by local kernels
  alignas(64) uint64_t teams[kSignalSlots];    // token 32 | teams 32 that reached a signal
  alignas(64) uint64_t waits[kSignalSlots];    // token 32 | result 16 | teams 16 that left
};

inline constexpr uint64_t kLinesMask = (uint64_t{1} << 53) - 1;
inline constexpr uint64_t kBusy = uint64_t{1} << 53;
inline constexpr uint64_t kFailed = uint64_t{1} << 55;
inline constexpr uint64_t kJoined = uint64_t{1} << 16;  // one team, in an owner word

ONEHOP_PURE uint64_t make_state(uint8_t epoch, uint64_t lines) {
  return static_cast<uint64_t>(epoch) << 56 | (lines & kLinesMask);
}
ONEHOP_PURE uint8_t epoch_of(uint64_t state) { return static_cast<uint8_t>(state >> 56); }

// Marks a half busy and returns its previous state. `looks_up`: the operation may read the table of
// imports. It is then an acquire, which pairs with run_lanes(): the operation finds no entry that
// the host has removed before.
template <typename A>
ONEHOP_PROTOCOL uint64_t mark_busy(LaneHalf* half, bool looks_up) {
  return looks_up ? A::fetch_or_acquire(&half->state, kBusy) : A::fetch_or(&half->state, kBusy);
}

ONEHOP_PROTOCOL LaneMemory* mine(const oh_lane_handle& lane) {
  return reinterpret_cast<LaneMemory*>(lane.mine);
}
ONEHOP_PROTOCOL LaneMemory* theirs(const oh_lane_handle& lane) {
  return reinterpret_cast<LaneMemory*>(lane.theirs);
}
ONEHOP_PROTOCOL LaneNotice* notice(const oh_lane_handle& lane) {
  return reinterpret_cast<LaneNotice*>(lane.notice);
}
// Signals belong to no lane; their notice follows those of the lanes.
ONEHOP_PROTOCOL LaneNotice* signals_notice(const oh_lane_handle& lane) {
  return notice(lane) + (OH_LANES - lane.lane);
}
ONEHOP_PURE uint64_t lines_of(const oh_lane_handle& lane) { return uint64_t{1} << lane.ring_shift; }
// A small message leaves a quarter of the ring free, so it never waits for credit that the receiver
// keeps back. (See lines_kept(), too.)
ONEHOP_PURE uint32_t most_small(const oh_lane_handle& lane) {
  const uint32_t lines = 1u << lane.ring_shift;
  return bytes_within(lines - lines / 4);
}
// Largest small message. A receive with a larger capacity posts its target first.
ONEHOP_PURE uint32_t small_bytes(const oh_lane_handle& lane) {
  return lane.small_max < most_small(lane) ? static_cast<uint32_t>(lane.small_max)
                                           : most_small(lane);
}

// Lines for which Receiver::finish() gives credit. For fewer the next receive does.
ONEHOP_PURE uint32_t lines_kept(const oh_lane_handle& lane) {
  const uint32_t lines = 1u << lane.ring_shift;
  return lines_for(small_bytes(lane)) <= lines / 2 ? lines / 2 : lines / 4;
}

// Ends a wait at the host's request or at its deadline. Checks the host's word and the clock only
// every kLook polls, because either takes longer than a usual wait.
//
// Limits: kLook, polls between two checks; abort(), the host's word; timeout_ns().
template <typename A, typename Limits>
struct BasicPatience {
  Limits limits;
  uint64_t started = 0;
  uint32_t polls = 0;
  uint32_t fault = OH_LANE_OK;

  ONEHOP_PROTOCOL bool over() {
    A::pause();
    return ++polls % Limits::kLook == 0 && look();
  }
  ONEHOP_PROTOCOL void begin_again() {
    started = 0;
    fault = OH_LANE_OK;
  }

 private:
  ONEHOP_PROTOCOL bool look() {
    if (A::load_relaxed(limits.abort()) != 0) fault = OH_LANE_ABORTED;
    const uint64_t now = A::now();
    if (started == 0) started = now;
    if (fault == OH_LANE_OK && now - started > limits.timeout_ns()) fault = OH_LANE_TIMEOUT;
    return fault != OH_LANE_OK;
  }
};

struct LaneLimits {
  static constexpr uint32_t kLook = 1024;
  const oh_lane_handle* lane;
  const LaneNotice* told;
  ONEHOP_PROTOCOL const uint64_t* abort() const { return &told->abort.word; }
  ONEHOP_PROTOCOL uint64_t timeout_ns() const { return lane->timeout_ns; }
};

// For waits on a lane, or on signals with the signals' notice.
template <typename A>
struct Patience : BasicPatience<A, LaneLimits> {
  ONEHOP_PROTOCOL explicit Patience(const oh_lane_handle* of) : Patience(of, notice(*of)) {}
  ONEHOP_PROTOCOL Patience(const oh_lane_handle* of, const LaneNotice* by)
      : BasicPatience<A, LaneLimits>{{of, by}} {}
};

}  // namespace onehop::detail
