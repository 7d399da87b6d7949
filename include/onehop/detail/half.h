// SPDX-License-Identifier: Apache-2.0
//
// How an operation takes one half of a lane, sending or receiving, and gives it back.
//
// Threading: one operation at a time on a half; it may consist of several teams (Group).
#pragma once

#include "onehop/detail/owner.h"

namespace onehop::detail {

// One half of a lane in the hands of an operation: each of its threads has one of these. In few
// words, as a kernel that goes on sending has them in registers all the time.
//
//   G   a group: rank() and size() over all teams; team(), teams(); leads(): one thread of a team;
//       share(value): the leader's value, for all of the team; any(flag): whether any of the team
//       says so; sync(). The last three are barriers of the team. follow(): what comes before in
//       the stream is over when it returns; by any thread, any number of times. let_next(): what
//       comes behind in the stream may begin, and wait there; by all. part(): of the team, one that
//       moves chunks by itself: number() of parts(); leads(), any(), sync() and copy() are its own.
template <typename A>
struct Half {
  const oh_lane_handle* lane;
  uint32_t side;  // 0: tx, 1: rx
  LaneHalf* half;
  uint64_t position = 0;     // of the next line
  uint64_t begun = 0;        // where we took it over
  uint32_t under_way = 0;    // lines before it: tx: not known to be read; rx: not told of
  uint32_t chunks_used = 0;  // of the staged ring, since we took it over
  uint32_t fault = OH_LANE_OK;
  bool all_know = false;  // of the team, that it is broken: no thread votes on it any more
  bool all_well = false;  // of the team; no thread of it has waited since that was found
  bool fenced = false;    // what was put lies before a fence of the thread that gives the half back
  bool looks_up = true;   // it may look into the table of imports
  Cursor cursor;          // position, in the ring of the side

  ONEHOP_PROTOCOL Half(const oh_lane_handle& of, uint32_t which)
      : lane(&of), side(which), half(which == 0 ? &mine(of)->tx : &mine(of)->rx) {}

  ONEHOP_PROTOCOL void advance(uint32_t lines) {
    // Of a thread that has had nothing to ask for it is too many, and stays so.
    constexpr uint32_t kTooMany = 1u << 31;
    position += lines;
    under_way = under_way + lines < kTooMany ? under_way + lines : kTooMany;
    cursor.advance(lines);
  }

  // False: it has failed, or another operation has it; then there is nothing to give back.
  template <typename G>
  ONEHOP_PROTOCOL bool take(G& group) {
    // Of several teams, which wait for each other, none begins early.
    if (group.teams() > 1) group.follow();
    // On its way while the state is asked for: what is too old is less, or of another epoch.
    const uint64_t known = A::load_relaxed(&half->through);
    const uint64_t state = group.share(group.leads() ? claim(group) : 0);
    group.follow();
    group.let_next();  // it takes no half before us
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

  // Behind the last access of the team's threads to the lane; if all are known to be well, behind a
  // barrier after that. commit(), by one thread of the last team, if none has failed; `told`: it
  // tells the other side something.
  template <typename G, typename Commit>
  ONEHOP_PROTOCOL void give(G& group, bool told, Commit&& commit) {
    if (!all_well) (void)agree(group, is_broken());
    if (!group.leads()) return;
    if (is_broken()) fail(fault, 0, 0);
    // Chunks carry no flag: none is stored after the next epoch has begun.
    if (chunks_used != 0) A::fence();
    bool good = !is_broken();
    uint64_t seen = 0;
    if (group.teams() > 1) {
      // In order where the other side is to be told of what all have done, and where all have read
      // the cursor that the last one stores. In a chain teams may differ in what they know of it.
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

  // After this fault the lane does not go on.
  ONEHOP_PROTOCOL bool is_broken() const { return fault > OH_LANE_RANGE; }
  // Whether any thread of the team says `bad`: then all have its fault, and none votes again: a
  // thread that gave up alone may be at another vote than the others. A barrier of the team.
  template <typename G>
  ONEHOP_PROTOCOL bool agree(G& group, bool bad) {
    if (all_know) return true;
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
  // Broadcasts what the leader alone has found to the team by one barrier: no other thread has
  // waited since they last agreed. False: it is broken.
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
  // Takes the next `count` chunks of the staged ring: the first of them.
  ONEHOP_PROTOCOL uint64_t use_chunks(uint32_t count) {
    const uint64_t first = A::load_relaxed(&half->chunks) + chunks_used;
    chunks_used += count;
    return first;
  }

  // Whether so many lines may be written, as far as we know.
  ONEHOP_PROTOCOL bool has_room(uint32_t lines) const {
    return under_way + lines <= cursor.mask + 1;
  }
  // Waits until they may. Threads that write none need not ask.
  ONEHOP_PROTOCOL bool wait_for_room(uint32_t lines, Patience<A>& patience) {
    const LaneMemory* from = (lane->flags & OH_LANE_SINGLE) != 0 ? theirs(*lane) : mine(*lane);
    const uint64_t* word = (lane->flags & OH_LANE_SINGLE) != 0 ? &from->kept_credit : &from->credit;
    while (!has_room(lines)) {
      // What the peer says is not believed if it is ahead of us.
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
  // By the leader, when no thread of ours reads lines before `position` any more.
  ONEHOP_PROTOCOL void give_credit() {
    if (!owes_credit()) return;
    under_way = 0;
    uint64_t* word =
        (lane->flags & OH_LANE_SINGLE) != 0 ? &mine(*lane)->kept_credit : &theirs(*lane)->credit;
    publish<A>(word, epoch(), position);
  }

  // Keeps the reason for the host, the first one.
  ONEHOP_PROTOCOL void fail(uint32_t why, uint64_t bytes, uint64_t capacity) {
    if ((A::fetch_or(&half->state, kFailed) & kFailed) != 0) return tell_if_resetting();
    tell(notice(*lane)->failed[side], why, bytes, capacity);
  }
  ONEHOP_PROTOCOL void warn(uint32_t why, uint64_t bytes, uint64_t capacity) {
    fault = why;
    tell(notice(*lane)->warned[side], why, bytes, capacity);
  }

 private:
  // Of a lane that has failed it is known; one that is being reset takes up operations before and
  // after, but this one is lost.
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

  // The state before, with kBusy only if it was another's. The first team takes the half for all.
  template <typename G>
  ONEHOP_PROTOCOL uint64_t claim(G& group) {
    const uint32_t teams = group.teams();
    if (group.team() != 0) return join<A>(half, *lane, teams);
    Patience<A> patience(lane);
    uint64_t before = mark_busy<A>(half, looks_up);
    if ((before & kBusy) != 0) {
      // The holder may come before us in the stream.
      group.follow();
      before = mark_busy<A>(half, looks_up);
    }
    // Other teams of ours may still be at what came before: their waits end.
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
        // What was taken back is seen by the same order: pairs with release().
        (void)A::load_acquire(&half->state);
        A::store_release(&half->owner, owner);
      } else {
        A::store_relaxed(&half->owner, owner);
      }
    }
    return before;
  }
  // The mark that we have set on a half that had failed. A new epoch begins without it, and may be
  // open by now, and another's.
  ONEHOP_PROTOCOL void take_back(uint64_t state) {
    const uint8_t ours = epoch_of(state);
    while (epoch_of(state) == ours) {
      const uint64_t seen = A::compare_swap(&half->state, state, state & ~kBusy);
      if (seen == state) return;
      state = seen;
    }
  }
  ONEHOP_PROTOCOL void release(bool advance) {
    // Release, here and below: what was put comes before. Pairs with run_lanes(): the host unmaps
    // only while no operation has the half.
    if (!advance) {
      A::fetch_and_ordered(&half->state, ~kBusy);
      return;
    }
    // In no order: what is too old of it is less.
    A::store_relaxed(&half->through, make_word(epoch(), position - under_way));
    // The host may have failed it meanwhile: only what is ours is changed.
    const uint64_t change = position - begun - kBusy;
    if (chunks_used == 0) return A::add(&half->state, change, fenced);
    A::store_relaxed(&half->chunks, A::load_relaxed(&half->chunks) + chunks_used);
    // Release: other blocks may be next in a chain. Pairs with claim().
    (void)A::fetch_add_ordered(&half->state, change);
  }
};

}  // namespace onehop::detail
