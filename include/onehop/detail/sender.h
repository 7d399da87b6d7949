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
  ImportGuess guess;  // of the leaders of parts

  template <typename G>
  ONEHOP_PROTOCOL Sender(const oh_lane_handle& lane, const G& group)
      : half(lane, 0), share(group.rank(), group.size()), most(small_bytes(lane)) {}

  // For messages that are not settled. All threads then count the same lines under way.
  template <typename G>
  ONEHOP_PROTOCOL bool take(G& group) {
    if (!half.take(group, [] {})) return false;
    half.under_way = static_cast<uint32_t>(group.share(half.under_way));
    return true;
  }
  // For one settled message of at most `longest` bytes.
  template <typename G>
  ONEHOP_PROTOCOL bool take_for(G& group, uint64_t longest) {
    half.looks_up = longest > most;
    return half.take(group, [] {});
  }
  // For an operation of a stream: loads what a large message is likely to need while earlier work
  // of the stream may still run.
  template <typename G>
  ONEHOP_PROTOCOL bool take_early(G& group, uint64_t longest) {
    half.looks_up = longest > most;
    return half.take(group, [&] {
      if (half.looks_up && group.part().leads()) guess = guess_import<A>(*half.lane);
    });
  }

  // Returns once the thread has read its share of the source; a direct put has also stored it.
  // Several teams take the lane for one message at a time. `settled`: the only message since
  // take_for() or take_early(), after which the group has not written the source. `kAnySize`: false
  // if `size` is at most `most`. The fault is the same in all threads of the team, but for a
  // settled message.
  template <bool kAnySize = true, typename G>
  ONEHOP_PROTOCOL void send(G& group, const void* source, uint64_t size, bool settled = false) {
    if (half.is_broken()) return;
    // Another thread may have written the source.
    if (!settled) group.sync();
    half.fault = OH_LANE_OK;
    half.all_well = false;
    const uint8_t* from = static_cast<const uint8_t*>(source);
    bytes = size;
    Patience<A> patience(half.lane);
    if constexpr (kAnySize) {
      if (size > most) {
        if (settled || find_room(group, kLargeLines, false, patience)) {
          send_large(group, from, patience);
        }
        return;
      }
    }
    const uint32_t small = static_cast<uint32_t>(size);
    // A message in its head alone. Streams' kernel for small messages does without this path, which
    // makes their other messages slower.
    if (kAnySize && small <= kHeadBytes && in_whole_words(from, small)) {
      const bool room = find_room(group, 1, settled, patience);
      if (room && share.rank == 0) {
        write_head<A>(half.cursor, WholeWords<const uint8_t>{from, small});
      }
      return half.advance(1);
    }
    const uint32_t lines = lines_for(small);
    if (find_room(group, lines, settled, patience)) {
      write_message<A>(half.cursor, share, from, small);
    }
    half.advance(lines);
  }

  template <typename G>
  ONEHOP_PROTOCOL uint32_t give(G& group) {
    half.give(group, ending != 0, [this] { say_ending(); });
    return half.fault;
  }

 private:
  // Returns whether `lines` lines may be written. Of a settled message a thread waits for its own
  // share, which ends with one of the last lines. Of others the leader waits for all, and tells the
  // team what it has found.
  template <typename G>
  ONEHOP_PROTOCOL bool find_room(G& group, uint32_t lines, bool settled, Patience<A>& patience) {
    if (half.has_room(lines)) return true;
    const bool waits = settled ? share.rank == 0 || share.first < bytes : group.leads();
    if (waits && !half.wait_for_room(lines, patience)) half.fault = patience.fault;
    if (settled) return !half.is_broken();
    uint64_t under_way = half.under_way;
    if (!half.learn(group, &under_way)) return false;
    half.under_way = static_cast<uint32_t>(under_way);
    half.all_well = false;
    return true;
  }
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

  // Each part of a single team looks for the route itself, and puts its bytes without waiting for
  // the others. The posting stays until all have voted: the leader ends the message after that.
  template <typename G>
  ONEHOP_PROTOCOL void send_large(G& group, const uint8_t* from, Patience<A>& patience) {
    auto&& part = group.part();
    uint64_t route = 0;
    if (group.leads()) {
      route = find_route(group, patience);
      if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
    } else if (group.teams() == 1 && part.leads()) {
      Posting posting;
      route = look_for_route(&posting, patience);
    }
    half.advance(kLargeLines);
    bool is_put = false;
    if (group.teams() == 1) {
      const uint64_t to = part.share(route);
      is_put = to > kRefused;
      if (is_put) put(group, part, reinterpret_cast<uint8_t*>(to), from);
      half.all_well = !group.any(!is_put);
    }
    if (!half.all_well) {
      // A part found no address: all go by the leader's route. What the others have put arrives
      // before the message ends or the half is given back. (A part alone has not put.)
      if (is_put && part.parts() > 1) {
        part.sync();
        if (part.leads()) A::fence();
      }
      if (!half.learn(group, &route)) return;
      if (route == kStaged) {
        if (group.leads() && group.team() == 0) store_ending(kStaged);
        return stage(group, from, patience);
      }
      if (route == kRefused) half.fault = OH_LANE_TRUNCATED;
      if (route > kRefused && !is_put) put(group, part, reinterpret_cast<uint8_t*>(route), from);
      group.sync();
      // Fence before this team leaves: the last team then publishes the ending for all.
      if (group.teams() > 1 && route > kRefused && group.leads()) A::fence();
    }
    ending = route == kRefused ? kRefused : kPut;
    if (group.teams() == 1 && group.leads()) say_ending();
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
    Posting posting;
    const uint64_t route = announce(patience) ? look_for_route(&posting, patience) : 0;
    if (group.teams() > 1 && route != 0) {
      A::store_relaxed(&shared->route, route);
      A::store_release(&shared->routed, mark);
    }
    auto& told = notice(*half.lane)->large;
    if (route == kRefused) half.warn(OH_LANE_TRUNCATED, bytes, posting.capacity);
    if (route == kStaged) {
      count(&shared->staged, &told.staged, staged_before + 1);
    } else if (route > kRefused) {
      count(&shared->put, &told.put, put_before + 1);
    }
    return route;
  }
  ONEHOP_PROTOCOL bool announce(Patience<A>& patience) {
    if (!half.wait_for_room(kLargeLines, patience)) return false;
    store_line<A>(half.cursor.at(0),
                  {{static_cast<uint32_t>(kAnnounced) << 30, static_cast<uint32_t>(bytes),
                    static_cast<uint32_t>(bytes >> 32)},
                   half.cursor.flag});
    return true;
  }
  ONEHOP_PROTOCOL uint64_t look_for_route(Posting* posting, Patience<A>& patience) {
    const oh_lane_handle& lane = *half.lane;
    const uint64_t mask = guess.mask != 0 ? guess.mask : import_mask<A>(lane);
    while (!read_posting<A>(mine(lane)->posted, half.epoch(), half.position, posting)) {
      if (patience.over()) return 0;
    }
    if (posting->capacity < bytes) return kRefused;
    const Place& place = posting->place;
    uint64_t to = 0;
    if (guess.entry.size.high == place.region) to = address_in(guess.entry, place, bytes);
    if (to == 0) to = find_import<A>(lane, mask, place, bytes);
    return to != 0 ? to : uint64_t{kStaged};
  }
  // Counts for this side and for the host. Reading the host's memory would take as long as a
  // message.
  ONEHOP_PROTOCOL void count(uint64_t* kept, uint64_t* told, uint64_t now) {
    A::store_relaxed(kept, now);
    A::store_relaxed(told, now);
  }

  template <typename G, typename P>
  ONEHOP_PROTOCOL void put(const G& group, P& part, uint8_t* to, const uint8_t* from) {
    const uint32_t parts = part.parts();
    const Slice slice =
        slice_of(bytes, group.team() * parts + part.number(), group.teams() * parts);
    part.copy(to + slice.begin, from + slice.begin, slice.size);
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
