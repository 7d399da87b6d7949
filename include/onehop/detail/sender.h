// SPDX-License-Identifier: Apache-2.0
//
// The sender of messages over a lane (message.h).
//
// Threading: see Half. Any thread of the group may read the source until the next barrier.
#pragma once

#include "onehop/detail/message.h"

namespace onehop::detail {

// A group's sending half of a lane.
template <typename A>
struct Sender {
  Half<A> half;
  Share share;
  uint32_t most;        // bytes of a small message
  uint32_t ending = 0;  // of the current large message; the last team publishes it
  uint64_t bytes = 0;

  template <typename G>
  ONEHOP_PROTOCOL Sender(const oh_lane_handle& lane, const G& group)
      : half(lane, 0), share(group.rank(), group.size()), most(small_bytes(lane)) {}

  // `longest`: bytes of the longest message that is sent before the half is given back.
  template <typename G>
  ONEHOP_PROTOCOL bool take(G& group, uint64_t longest = ~uint64_t{0}) {
    half.looks_up = longest > most;
    return half.take(group);
  }

  // Returns once the thread has read its share of the source; a direct put has also stored it.
  // Several teams take the lane for one message at a time. `settled`: the group has not written the
  // source since take(). `kAnySize`: false if `size` is at most `most`.
  template <bool kAnySize = true, typename G>
  ONEHOP_PROTOCOL void send(G& group, const void* source, uint64_t size, bool settled = false) {
    // A barrier, and a vote: a thread may have given up.
    if (!settled) (void)half.agree(group, half.is_broken());
    if (half.is_broken()) return;
    half.fault = OH_LANE_OK;
    half.all_well = false;
    const uint8_t* from = static_cast<const uint8_t*>(source);
    bytes = size;
    if constexpr (kAnySize) {
      if (size > most) return send_large(group, from);
    }
    const uint32_t small = static_cast<uint32_t>(size);
    const uint32_t lines = lines_for(small);
    Patience<A> patience(half.lane);
    // The thread's share ends with one of the last lines, so it waits for room for all.
    if (half.has_room(lines) || (share.first >= small && share.rank != 0) ||
        half.wait_for_room(lines, patience)) {
      if (in_whole_words(from, small)) [[likely]] {
        write_lines<A>(half.cursor, share, WholeWords<const uint8_t>{from, small});
      } else {
        write_lines<A>(half.cursor, share, AnyWords<const uint8_t>{from, small});
      }
    }
    if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
    half.advance(lines);
  }

  template <typename G>
  ONEHOP_PROTOCOL uint32_t give(G& group) {
    half.give(group, ending != 0, [this] { say_ending(); });
    return half.fault;
  }

 private:
  // The end line lies before the cursor, which has already passed the message.
  ONEHOP_PROTOCOL void store_ending(uint32_t how) {
    const LineRing ring{half.cursor.lines, half.lane->ring_shift, half.epoch()};
    const uint64_t position = half.position - 1;
    store_line<A>(line_at(ring, position),
                  {{kEnded << 30 | how, 0, 0}, flag_at(half.epoch(), ring.shift, position)});
  }
  ONEHOP_PROTOCOL void say_ending() {
    if (ending == 0) return;
    A::fence();
    half.fenced = true;
    store_ending(ending);
    ending = 0;
  }

  template <typename G>
  ONEHOP_PROTOCOL void send_large(G& group, const uint8_t* from) {
    Patience<A> patience(half.lane);
    uint64_t route = group.leads() ? find_route(group, patience) : 0;
    half.advance(kLargeLines);
    if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
    if (!half.learn(group, &route)) return;
    if (route == kStaged) {
      if (group.leads() && group.team() == 0) store_ending(kStaged);
      return stage(group, from, patience);
    }
    if (route == kRefused) {
      half.fault = OH_LANE_TRUNCATED;
    } else {
      put(group, reinterpret_cast<uint8_t*>(route), from);
    }
    ending = route == kRefused ? kRefused : kPut;
    if (group.teams() > 1) return;
    group.sync();
    if (group.leads()) say_ending();
  }

  // The leaders call it. Returns the target address, kStaged or kRefused; 0 after a fault. The
  // first team decides for all: the receiver may finish and post its next receive before another
  // team reads this posting, and the table may change.
  template <typename G>
  ONEHOP_PROTOCOL uint64_t find_route(const G& group, Patience<A>& patience) {
    LaneHalf* shared = half.half;
    const uint64_t mark = half.position + 1;
    if (group.team() != 0) {
      while (A::load_acquire(&shared->routed) != mark) {
        if (patience.over()) return 0;
      }
      return A::load_relaxed(&shared->route);
    }
    // Load the counters while the receiver has not posted yet.
    const uint64_t put_before = A::load_relaxed(&shared->put);
    const uint64_t staged_before = A::load_relaxed(&shared->staged);
    const uint64_t route = ask_for_route(patience);
    if (group.teams() > 1 && route != 0) {
      A::store_relaxed(&shared->route, route);
      A::store_release(&shared->routed, mark);
    }
    auto& told = notice(*half.lane)->large;
    if (route == kStaged) {
      count(&shared->staged, &told.staged, staged_before + 1);
    } else if (route != 0 && route != kRefused) {
      count(&shared->put, &told.put, put_before + 1);
    }
    return route;
  }
  ONEHOP_PROTOCOL uint64_t ask_for_route(Patience<A>& patience) {
    const uint64_t mask = import_mask<A>(*half.lane);
    if (!half.wait_for_room(kLargeLines, patience)) return 0;
    store_line<A>(half.cursor.at(0),
                  {{static_cast<uint32_t>(kAnnounced) << 30, static_cast<uint32_t>(bytes),
                    static_cast<uint32_t>(bytes >> 32)},
                   half.cursor.flag});
    Posting posting;
    while (!read_posting<A>(mine(*half.lane)->posted, half.epoch(), half.position, &posting)) {
      if (patience.over()) return 0;
    }
    if (posting.capacity < bytes) {
      half.warn(OH_LANE_TRUNCATED, bytes, posting.capacity);
      return kRefused;
    }
    const uint64_t to = find_import<A>(*half.lane, mask, posting.place, bytes);
    return to != 0 ? to : uint64_t{kStaged};
  }
  // Counts for this side and for the host. Reading the host's memory would take as long as a
  // message.
  ONEHOP_PROTOCOL void count(uint64_t* kept, uint64_t* told, uint64_t now) {
    A::store_relaxed(kept, now);
    A::store_relaxed(told, now);
  }

  template <typename G>
  ONEHOP_PROTOCOL void put(G& group, uint8_t* to, const uint8_t* from) {
    const Slice slice = slice_of(bytes, group.team(), group.teams());
    group.copy(to + slice.begin, from + slice.begin, slice.size);
    if (group.teams() == 1) return;
    group.sync();
    // Fence before this team leaves: the last team then publishes the ending for all.
    if (group.leads()) A::fence();
  }

  template <typename G>
  ONEHOP_PROTOCOL void stage(G& group, const uint8_t* from, Patience<A>& patience) {
    const oh_lane_handle& lane = *half.lane;
    const Chunks chunks{bytes, kSingle<A> ? theirs(lane)->kept_emptied : mine(lane)->emptied,
                        lane.chunk_slots, theirs(lane)->filled};
    using Part = decltype(group.part());
    move_chunks(half, group, chunks, patience, [&](Part& part, uint64_t slot, const Slice& slice) {
      part.copy(reinterpret_cast<uint8_t*>(lane.theirs + slot), from + slice.begin, slice.size);
    });
  }
};

}  // namespace onehop::detail
