// SPDX-License-Identifier: Apache-2.0
//
// How an operation takes one half of a lane, sending or receiving, and gives it back.
//
// Threading: one operation at a time on a half; it may consist of several teams (Group).
#pragma once

#include "onehop/detail/owner.h"

namespace onehop::detail {

// One half of a lane, held by an operation; each of its threads has one of these. It has few
// members, because a kernel that keeps sending holds them in registers.
//
//   G   a group: rank() and size() over all teams; team(), teams(); leads(): one thread of a team;
//       share(value): the leader's value, to the whole team; any(flag): a vote of the team; sync().
//       The last three are barriers of the team. follow() returns once earlier work of the stream
//       has ended; any thread may call it, repeatedly. let_next(): later work of the stream may
//       start, up to its own follow(); all threads call it. part(): a part of the team that moves
//       bytes on its own: number() of parts(), leads(), share(), any(), sync(), copy().
//       Receiver::finish(): give_up(fault), before end(), which returns such a fault to the leader.
template <typename A>
struct Half {
  const oh_lane_handle* lane;
  uint32_t side;  // 0: tx, 1: rx
  LaneHalf* half;
  uint64_t position = 0;     // of the next line
  uint64_t begun = 0;        // `position` when the half was taken
  uint32_t under_way = 0;    // lines before it: tx: maybe unread; rx: not credited
  uint32_t chunks_used = 0;  // of the staged ring, since the half was taken
  uint32_t fault = OH_LANE_OK;
  bool all_know = false;  // the team knows that the half is broken: no thread votes again
  bool all_well = false;  // no vote is due: no thread is broken, or the leader knows the fault
  bool fenced = false;    // the thread that gives the half back has fenced the puts
  bool looks_up = true;   // the operation may read the table of imports
  Cursor cursor;          // `position` in the ring

  ONEHOP_PROTOCOL Half(const oh_lane_handle& of, uint32_t which)
      : lane(&of), side(which), half(which == 0 ? &mine(of)->tx : &mine(of)->rx) {}

  ONEHOP_PROTOCOL void advance(uint32_t lines) {
    position += lines;
    under_way += lines;
    cursor.advance(lines);
  }

  // Returns false if the half has failed or another operation holds it. Then do not call give().
  // `meanwhile`: called behind the attempt; of a single team, before earlier work has ended.
  template <typename G, typename Meanwhile>
  ONEHOP_PROTOCOL bool take(G& group, Meanwhile&& meanwhile) {
    // Teams wait for each other, so none starts before earlier work has ended.
    if (group.teams() > 1) group.follow();
    // Load `through` along with the state. A stale count is smaller or of another epoch: safe.
    const uint64_t known = A::load_relaxed(&half->through);
    const uint64_t state = group.share(group.leads() ? claim(group) : 0);
    meanwhile();
    group.follow();
    group.let_next();  // this operation already holds its half
    const uint8_t now = epoch_of(state);
    begun = position = state & kLinesMask;
    under_way = static_cast<uint32_t>(position - count_of(known, now));
    const uint64_t ring = (side == 0 ? lane->theirs : lane->mine) + lane->lines_at;
    cursor = Cursor({reinterpret_cast<Pair*>(ring), lane->ring_shift, now}, position);
    if ((state & kBusy) != 0) fault = OH_LANE_OVERLAP;
    if ((state & kFailed) != 0) fault = OH_LANE_FAILED;
    if (fault == OH_LANE_OVERLAP && group.leads()) fail(fault, 0, 0);
    if (fault == OH_LANE_FAILED && group.leads() && group.team() == 0) tell_if_resetting();
    return fault == OH_LANE_OK;
  }

  // Call after the team's last access to the lane, and if `all_well`, after a further barrier. One
  // thread of the last team calls commit() if none failed. `told`: commit() informs the peer.
  template <typename G, typename Commit>
  ONEHOP_PROTOCOL void give(G& group, bool told, Commit&& commit) {
    if (!all_well && !all_know) (void)agree(group, is_broken());
    if (!group.leads()) return;
    if (is_broken()) fail(fault, 0, 0);
    // Chunks carry no flag: store them before the next epoch begins.
    if (chunks_used != 0) A::fence();
    bool good = !is_broken();
    uint64_t seen = 0;
    if (group.teams() > 1) {
      // Ordered if commit() publishes what all teams did, or if the last team overwrites a cursor
      // that all have read. In a chain of operations `told` may differ between teams.
      const bool ordered = told || chunks_used != 0 || is_handed_over(*lane, group.teams());
      seen = (ordered ? A::fetch_add_ordered(&half->owner, 1) : A::fetch_add(&half->owner, 1)) + 1;
      if ((seen & 0xffff) != group.teams()) return leave<A>(half, seen);
      if (good && (A::load_relaxed(&half->state) & kFailed) != 0) fault = OH_LANE_FAILED;
      good = !is_broken();
    }
    if (good) commit();
    release(good);
    if (group.teams() > 1 && is_of_grid(lane->token)) forget<A>(half, *lane, seen);
  }

  // Whether the fault makes the lane unusable.
  ONEHOP_PROTOCOL bool is_broken() const { return fault > OH_LANE_RANGE; }
  // Returns true if any thread of the team passes `bad`. Then all have its fault, and none votes
  // again: a thread that gave up may be at another vote than the others. A barrier of the team.
  // Precondition: not all_know.
  template <typename G>
  ONEHOP_PROTOCOL bool agree(G& group, bool bad) {
    all_well = !group.any(bad);
    if (all_well) return false;
    all_know = true;
    const bool aborted = group.any(fault == OH_LANE_ABORTED);
    const bool late = group.any(fault == OH_LANE_TIMEOUT);
    const bool wrong = group.any(fault == OH_LANE_PROTOCOL);
    fault = aborted ? OH_LANE_ABORTED
            : late  ? OH_LANE_TIMEOUT
            : wrong ? OH_LANE_PROTOCOL
                    : OH_LANE_FAILED;
    return true;
  }
  // Broadcasts the leader's value to the team with one barrier. Precondition: no other thread has
  // got a fault since the last vote. Returns false if the half is broken.
  template <typename G>
  ONEHOP_PROTOCOL bool learn(G& group, uint64_t* found) {
    constexpr uint32_t kFault = 56;  // no address is as large
    *found = group.share(is_broken() ? static_cast<uint64_t>(fault) << kFault : *found);
    all_know = *found >> kFault != 0;
    all_well = !all_know;
    if (all_know) fault = static_cast<uint32_t>(*found >> kFault);
    return !all_know;
  }
  ONEHOP_PROTOCOL uint8_t epoch() const { return static_cast<uint8_t>(cursor.flag >> 24); }
  // Takes the next `count` chunks of the staged ring. Returns the first.
  ONEHOP_PROTOCOL uint64_t use_chunks(uint32_t count) {
    const uint64_t first = A::load_relaxed(&half->chunks) + chunks_used;
    chunks_used += count;
    return first;
  }

  // Whether `lines` lines may be written, by the credit seen so far.
  ONEHOP_PROTOCOL bool has_room(uint32_t lines) const {
    return under_way + lines <= cursor.mask + 1;
  }
  // Waits until they may. Threads that write no line need not call it.
  ONEHOP_PROTOCOL bool wait_for_room(uint32_t lines, Patience<A>& patience) {
    const uint64_t* word = kSingle<A> ? &theirs(*lane)->kept_credit : &mine(*lane)->credit;
    while (!has_room(lines)) {
      // Ignore credit that is ahead of this side's position.
      const uint64_t seen = poll<A>(word, epoch());
      if (seen <= position && position - seen < under_way) {
        under_way = static_cast<uint32_t>(position - seen);
      } else if (patience.over()) {
        return false;
      }
    }
    return true;
  }

  ONEHOP_PROTOCOL bool owes_credit() const { return under_way >= (cursor.mask + 1) / 4; }
  // The leader calls it once no local thread reads lines before `position`.
  ONEHOP_PROTOCOL void give_credit() {
    under_way = 0;
    uint64_t* word = kSingle<A> ? &mine(*lane)->kept_credit : &theirs(*lane)->credit;
    publish<A>(word, epoch(), position);
  }

  // Fails the half and records the first fault for the host.
  ONEHOP_PROTOCOL void fail(uint32_t why, uint64_t bytes, uint64_t capacity) {
    if ((A::fetch_or(&half->state, kFailed) & kFailed) != 0) return tell_if_resetting();
    tell(notice(*lane)->failed[side], why, bytes, capacity);
  }
  ONEHOP_PROTOCOL void warn(uint32_t why, uint64_t bytes, uint64_t capacity) {
    fault = why;
    tell(notice(*lane)->warned[side], why, bytes, capacity);
  }

 private:
  // The host knows of a failed lane. A lane in reset continues, but this operation is lost.
  ONEHOP_PROTOCOL void tell_if_resetting() {
    if (A::load_relaxed(&notice(*lane)->abort.resetting) == 0) return;
    tell(notice(*lane)->warned[side], OH_LANE_ABORTED, 0, 0);
  }
  template <typename Place>
  ONEHOP_PROTOCOL void tell(Place& place, uint32_t why, uint64_t bytes, uint64_t capacity) {
    A::store_relaxed(&place.bytes, bytes);
    A::store_relaxed(&place.capacity, capacity);
    A::store_relaxed(&place.position, position);
    A::store_release(&place.fault, why);
  }

  // Returns the previous state, with kBusy only if another operation holds the half. The first team
  // takes the half for all.
  template <typename G>
  ONEHOP_PROTOCOL uint64_t claim(G& group) {
    const uint32_t teams = group.teams();
    if (group.team() != 0) return join<A>(half, *lane, teams);
    Patience<A> patience(lane);
    uint64_t before = mark_busy<A>(half, looks_up);
    if ((before & kBusy) != 0) {
      // The holder may be earlier work of this stream.
      group.follow();
      before = mark_busy<A>(half, looks_up);
    }
    // Other teams of this launch may still be in the operation before. Its waits end.
    while ((before & (kBusy | kFailed)) == kBusy && lane->follows != 0 &&
           is_before(static_cast<uint32_t>(A::load_relaxed(&half->owner) >> 32), lane->follows) &&
           !patience.over()) {
      before = mark_busy<A>(half, looks_up);
    }
    if ((before & kBusy) != 0) return before;
    if ((before & kFailed) != 0) {
      take_back(before | kBusy);
    } else if (teams > 1) {
      const uint64_t owner = static_cast<uint64_t>(lane->token) << 32 | kJoined;
      if (is_handed_over(*lane, teams)) {
        // Acquire: pairs with release(). The store passes it on to the other teams.
        (void)A::load_acquire(&half->state);
        A::store_release(&half->owner, owner);
      } else {
        A::store_relaxed(&half->owner, owner);
      }
    }
    return before;
  }
  // Clears the busy mark that this operation set on a failed half. A new epoch begins without the
  // mark; there it may be another operation's.
  ONEHOP_PROTOCOL void take_back(uint64_t state) {
    const uint8_t ours = epoch_of(state);
    while (epoch_of(state) == ours) {
      const uint64_t seen = A::compare_swap(&half->state, state, state & ~kBusy);
      if (seen == state) return;
      state = seen;
    }
  }
  ONEHOP_PROTOCOL void release(bool advance) {
    // Release, here and below: the puts come before. Pairs with run_lanes(): the host unmaps memory
    // only while no operation holds the half.
    if (!advance) {
      A::fetch_and_ordered(&half->state, ~kBusy);
      return;
    }
    // Unordered: a stale count is smaller, which is safe.
    A::store_relaxed(&half->through, make_word(epoch(), position - under_way));
    // Add the change: the host may have set kFailed meanwhile.
    const uint64_t change = position - begun - kBusy;
    if (chunks_used == 0) return A::add(&half->state, change, fenced);
    A::store_relaxed(&half->chunks, A::load_relaxed(&half->chunks) + chunks_used);
    // Release: other blocks of the chain may take the half next. Pairs with claim().
    (void)A::fetch_add_ordered(&half->state, change);
  }
};

}  // namespace onehop::detail
