// SPDX-License-Identifier: Apache-2.0
//
// Lanes: what each side of a peer keeps in the memory of its GPU for messages between kernels, how
// an operation takes one half of a lane (sending or receiving), and how its waits end.
//
//   memory of a lane           written by          read by
//   tx, rx                     us                  us: cursors and the owner
//   credit                     their receiver      our sender: lines they are through with
//   posted                     their receiver      our sender: where a large message is to go
//   filled                     their sender        our receiver: chunks that are there
//   emptied                    their receiver      our sender: chunks they are through with
//   lines, chunks              their sender        our receiver
//
// So a waiter polls memory of its own GPU. With OH_LANE_SINGLE the credit of our sender lies
// in the peer's memory instead (kept_*), for comparison.
//
//   state    epoch 8 | failed 1 | 0 | busy 1 | lines 53      lines: the cursor
//   owner    token 32 | joined 16 | left 16                  of an operation by several blocks
//
// One atomic access takes a half and tells its cursor: two at once find each other, and neither a
// counter nor an index is ever given by the user.
//
// Threading: one operation at a time on a half; it may consist of several teams (Group).
#pragma once

#include "onehop/detail/cursor.h"
#include "onehop/lane.h"

namespace onehop::detail {

inline constexpr uint32_t kMostChunks = 64;

struct alignas(64) LaneHalf {
  uint64_t state;  // in one access with the owner
  uint64_t owner;
  uint64_t chunks;   // cursor of the staged ring
  uint64_t through;  // tx: what the receiver was through with when we looked last; rx: what we said
  uint64_t route;    // tx: of a large message, by the first team for the others
  uint64_t routed;   // 1 + the position of that message, behind its route
  uint64_t put;      // tx: large messages that went straight into their buffer
  uint64_t staged;   // tx: large messages that went through chunks
};

struct LaneMemory {
  LaneHalf tx;
  LaneHalf rx;
  alignas(64) uint64_t credit;
  alignas(64) Pair posted[2];
  alignas(64) uint64_t filled[kMostChunks];
  alignas(64) uint64_t emptied[kMostChunks];
  alignas(64) uint64_t kept_credit;  // OH_LANE_SINGLE: by our receiver, read by their sender
  alignas(64) uint64_t kept_emptied[kMostChunks];
};

// In mapped host memory, one per lane, and one for signals. Index 0: tx, 1: rx.
struct alignas(64) LaneNotice {
  struct alignas(64) {
    uint64_t word;       // by the host: not 0, and waits end
    uint64_t resetting;  // by the host: not 0: operations that find the lane failed report it
  } abort;
  struct alignas(64) {
    uint64_t fault;  // by kernels: an oh_lane_fault, behind the rest
    uint64_t bytes;  // of the message
    uint64_t capacity;
    uint64_t position;
  } failed[2], warned[2];  // failed: the half takes no more; warned: it goes on
  struct alignas(64) {
    uint64_t put;     // by kernels: what the sending half has
    uint64_t staged;  // likewise
  } large;
};

// What a peer signals us, and what was taken of it.
inline constexpr uint32_t kSignalSlots = 64;
struct LaneSignals {
  alignas(64) uint64_t arrived[kSignalSlots];  // by the peer
  alignas(64) uint64_t taken[kSignalSlots];    // by us
  alignas(64) uint64_t teams[kSignalSlots];    // by us: token 32 | teams 32 that came to a signal
  alignas(64) uint64_t waits[kSignalSlots];    // by us: token 32 | result 16 | teams 16 that left
};

inline constexpr uint64_t kLinesMask = (uint64_t{1} << 53) - 1;
inline constexpr uint64_t kBusy = uint64_t{1} << 53;
inline constexpr uint64_t kFailed = uint64_t{1} << 55;
inline constexpr uint64_t kJoined = uint64_t{1} << 16;  // of an owner word, which counts teams

ONEHOP_PURE uint64_t make_state(uint8_t epoch, uint64_t lines) {
  return static_cast<uint64_t>(epoch) << 56 | (lines & kLinesMask);
}
ONEHOP_PURE uint8_t epoch_of(uint64_t state) { return static_cast<uint8_t>(state >> 56); }

// The state before. `looks_up`: the operation may look into the table of imports. Acquire then:
// pairs with run_lanes(), which comes before it or behind it. What the host had taken out of the
// table before is not found in it any more.
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
// Of signals, which belong to no lane: behind those of the lanes.
ONEHOP_PROTOCOL LaneNotice* signals_notice(const oh_lane_handle& lane) {
  return notice(lane) + (OH_LANES - lane.lane);
}
ONEHOP_PURE uint64_t lines_of(const oh_lane_handle& lane) { return uint64_t{1} << lane.ring_shift; }
// Credit is given when so many lines were read, and a small message leaves as many free: it never
// waits for credit that the receiver keeps back.
ONEHOP_PURE uint32_t most_small(const oh_lane_handle& lane) {
  const uint32_t lines = 1u << lane.ring_shift;
  return bytes_within(lines - lines / 4);
}
// Larger messages are sent as large ones, and receives for them say where they are.
ONEHOP_PURE uint32_t small_bytes(const oh_lane_handle& lane) {
  return lane.small_max < most_small(lane) ? static_cast<uint32_t>(lane.small_max)
                                           : most_small(lane);
}

// When a wait ends without what it waited for. Looks at the host's word and at the clock only now
// and then: either takes longer than what is waited for.
//
// Limits: kLook, polls from one look to the next; abort(), the host's word; timeout_ns().
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

// Of a lane, or of signals by their notice.
template <typename A>
struct Patience : BasicPatience<A, LaneLimits> {
  ONEHOP_PROTOCOL explicit Patience(const oh_lane_handle* of) : Patience(of, notice(*of)) {}
  ONEHOP_PROTOCOL Patience(const oh_lane_handle* of, const LaneNotice* by)
      : BasicPatience<A, LaneLimits>{{of, by}} {}
};

}  // namespace onehop::detail
