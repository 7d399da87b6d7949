// SPDX-License-Identifier: Apache-2.0
//
// Messages over a lane, of any size. Small ones lie in the ring, flags and all (line.h). A large
// one takes two lines of it: one says how long it is, the other how it came. In between, the
// receiver says where its buffer is, and the sender puts the bytes there if it has that memory
// mapped; else they go through the chunks of the lane.
//
//   head line    kind 2 | length 30 | the first 8 bytes, or the length of a large message
//
//   sender    ANNOUNCED ───────────▶ posted? ─▶ put ─▶ fence ─▶ ENDED: put
//   receiver  posts ─▶ ANNOUNCED? ─┘       └──▶ ENDED: staged ─▶ chunks, each behind its word
//
// A message that is longer than its receive costs both sides an error and neither its step: the
// receiver drains what it has no room for, and of a large one nothing is sent.
//
// Threading: see Half. The source is read by all threads of the group, at any time until the next
// barrier; the target is whole when receive() returns.
#pragma once

#include "onehop/detail/copy.h"
#include "onehop/detail/posting.h"

namespace onehop::detail {

enum HeadKind : uint32_t { kSmall = 0, kAnnounced = 1, kEnded = 2 };
inline constexpr uint32_t kLengthMask = (1u << 30) - 1;
// Of kEnded, in place of the length.
enum Ending : uint32_t { kPut = 1, kStaged = 2, kRefused = 3 };
inline constexpr uint64_t kLargeLines = 2;

// The part of [0, bytes) that a team copies, in whole tiles.
struct Slice {
  uint64_t begin;
  uint64_t size;
};
ONEHOP_PURE Slice slice_of(uint64_t bytes, uint32_t team, uint32_t teams) {
  constexpr uint64_t kTile = 4096;
  const uint64_t tiles = (bytes + kTile - 1) / kTile;
  const uint64_t first = tiles * team / teams * kTile;
  const uint64_t behind = tiles * (team + 1) / teams * kTile;
  const uint64_t end = behind < bytes ? behind : bytes;
  return {first < end ? first : end, first < end ? end - first : 0};
}

// A group's sending half of a lane.
template <typename A>
struct Sender {
  Half<A> half;
  uint32_t ending = 0;  // of the large message under way, to be said by the last team
  uint64_t bytes = 0;

  ONEHOP_PROTOCOL explicit Sender(const oh_lane_handle& lane) : half(lane, 0) {}

  template <typename G>
  ONEHOP_PROTOCOL bool take(G& group) {
    return half.take(group);
  }

  // Returns when the thread's share was read, or has arrived where the bytes go directly. Several
  // teams send one message each time they take the lane. `settled`: none of the group has written
  // the source since then.
  template <typename G>
  ONEHOP_PROTOCOL void send(G& group, const void* source, uint64_t size, bool settled = false) {
    // A thread may have given up, too.
    if (!settled) (void)half.agree(group, half.is_broken());
    if (half.is_broken()) return;
    half.fault = OH_LANE_OK;
    const uint8_t* from = static_cast<const uint8_t*>(source);
    bytes = size;
    if (size > half.lane.small_max || size > most_small(half.lane)) return send_large(group, from);
    Patience<A> patience(half.lane);
    const Part part{group.rank(), group.size()};
    const uint64_t lines = lines_for(size);
    // Its share ends with one of the last lines; asking for all of them is as good.
    const bool writes = part.rank == 0 || part.rank < lines - 1;
    if (!writes || half.wait_for_room(half.position + lines, patience)) {
      const LineRing ring = half.outgoing();
      if (part.rank == 0) {
        Line head{{static_cast<uint32_t>(size), 0, 0}, 0};
        if (size > 0) head.words[1] = load_word(from, size);
        if (size > 4) head.words[2] = load_word(from + 4, size - 4);
        store_head(ring, half.position, head);
      }
      write_body<A>(ring, half.position, part, from, size);
    }
    if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
    half.position += lines;
  }

  template <typename G>
  ONEHOP_PROTOCOL uint32_t give(G& group) {
    half.give(group, [this] { say_ending(); });
    return half.fault;
  }

 private:
  ONEHOP_PROTOCOL void store_head(const LineRing& ring, uint64_t position, Line head) {
    head.flag = flag_at(ring.epoch, ring.shift, position);
    store_line<A>(line_at(ring, position), head);
  }
  ONEHOP_PROTOCOL void store_ending(uint64_t position, uint32_t how) {
    store_head(half.outgoing(), position, {{kEnded << 30 | how, 0, 0}, 0});
  }
  ONEHOP_PROTOCOL void say_ending() {
    if (ending == 0) return;
    A::fence();
    store_ending(half.position - 1, ending);
    ending = 0;
  }

  template <typename G>
  ONEHOP_PROTOCOL void send_large(G& group, const uint8_t* from) {
    Patience<A> patience(half.lane);
    const uint64_t at = half.position;
    half.position += kLargeLines;
    const uint64_t found = group.leads() ? find_route(group, at, patience) : 0;
    if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
    if (half.agree(group, half.is_broken())) return;
    const uint64_t route = group.share(found);
    if (route == kStaged) {
      if (group.leads() && group.team() == 0) store_ending(at + 1, kStaged);
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

  // By the leaders: where the message goes, kStaged or kRefused. The first team finds out, for all:
  // the receiver may be through while others have nothing to do, and its next posting there; and
  // the table may change.
  template <typename G>
  ONEHOP_PROTOCOL uint64_t find_route(G& group, uint64_t at, Patience<A>& patience) {
    LaneHalf* shared = half.half;
    if (group.team() == 0) {
      const uint64_t route = ask_for_route(at, patience);
      if (group.teams() > 1 && route != 0) {
        A::store_relaxed(&shared->route, route);
        A::store_release(&shared->routed, at + 1);
      }
      return route;
    }
    while (A::load_acquire(&shared->routed) != at + 1) {
      if (patience.over()) return 0;
    }
    return A::load_relaxed(&shared->route);
  }
  ONEHOP_PROTOCOL uint64_t ask_for_route(uint64_t at, Patience<A>& patience) {
    if (!half.wait_for_room(half.position, patience)) return 0;
    store_head(half.outgoing(), at,
               {{static_cast<uint32_t>(kAnnounced) << 30, static_cast<uint32_t>(bytes),
                 static_cast<uint32_t>(bytes >> 32)},
                0});
    Posting posting;
    while (!read_posting<A>(mine(half.lane)->posted, half.epoch, at, &posting)) {
      if (patience.over()) return 0;
    }
    if (posting.capacity < bytes) {
      half.warn(OH_LANE_TRUNCATED, bytes, posting.capacity);
      return kRefused;
    }
    const uint64_t to = find_import<A>(half.lane, posting.place, bytes);
    return to != 0 ? to : uint64_t{kStaged};
  }

  template <typename G>
  ONEHOP_PROTOCOL void put(G& group, uint8_t* to, const uint8_t* from) {
    const Slice slice = slice_of(bytes, group.team(), group.teams());
    group.copy(to + slice.begin, from + slice.begin, slice.size);
    if (group.teams() == 1) return;
    group.sync();
    // Before the team is counted, and the last one says that all is there.
    if (group.leads()) A::fence();
  }

  template <typename G>
  ONEHOP_PROTOCOL void stage(G& group, const uint8_t* from, Patience<A>& patience) {
    const oh_lane_handle& lane = half.lane;
    half.know_chunks();
    const uint64_t most = uint64_t{1} << lane.chunk_shift;
    const uint64_t count = (bytes + most - 1) >> lane.chunk_shift;
    const bool single = (lane.flags & OH_LANE_SINGLE) != 0;
    const uint64_t* emptied = single ? theirs(lane)->kept_emptied : mine(lane)->emptied;
    for (uint64_t i = group.team(); i < count; i += group.teams()) {
      const uint64_t chunk = half.chunks + i;
      const uint64_t slot = chunk % lane.chunk_slots;
      bool free = true;
      if (group.leads()) {
        while (free && poll<A>(&emptied[slot], half.epoch) + lane.chunk_slots < chunk + 1) {
          free = !patience.over();
        }
      }
      if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
      if (half.agree(group, !free)) return;
      const uint64_t begin = i << lane.chunk_shift;
      uint8_t* to =
          reinterpret_cast<uint8_t*>(lane.theirs + lane.chunks_at + (slot << lane.chunk_shift));
      group.copy(to, from + begin, bytes - begin < most ? bytes - begin : most);
      group.sync();
      if (group.leads()) publish<A>(&theirs(lane)->filled[slot], half.epoch, chunk + 1);
    }
    half.chunks += count;
  }
};

// A group's receiving half of a lane.
template <typename A>
struct Receiver {
  Half<A> half;
  uint64_t length = 0;  // of the message that came last

  ONEHOP_PROTOCOL explicit Receiver(const oh_lane_handle& lane) : half(lane, 1) {}

  template <typename G>
  ONEHOP_PROTOCOL bool take(G& group) {
    return half.take(group);
  }

  // Afterwards `length` is that of the message. `place`: of the target, where the peer may map it.
  template <typename G>
  ONEHOP_PROTOCOL void receive(G& group, void* target, uint64_t capacity, const Place& place = {}) {
    if (half.is_broken()) return;
    half.fault = OH_LANE_OK;
    length = 0;
    Patience<A> patience(half.lane);
    const LineRing ring = half.incoming();
    const Part part{group.rank(), group.size()};
    const bool speaks = group.leads() && group.team() == 0;
    const bool early = capacity > half.lane.small_max;
    // The peer may write into it at once, and others of the group may still use it.
    if (early && place.region != 0) group.sync();
    if (early && speaks) say_where(place, capacity);
    // The head, and what may be the thread's first line, on their way at once.
    Line head;
    Line first;
    const Pair* own = line_at(ring, half.position + 1 + part.rank);
    const uint32_t flag = flag_at(ring.epoch, ring.shift, half.position);
    bool there = true;
    while (there) {
      head = load_line<A>(line_at(ring, half.position));
      first = load_line<A>(own);
      if (head.flag == flag) break;
      there = !patience.over();
    }
    if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
    // The target may have been in use by others of the group until here.
    if (half.agree(group, !there)) return;
    if (head.words[0] >> 30 == kAnnounced) {
      length = head.words[1] | static_cast<uint64_t>(head.words[2]) << 32;
      if (!early && speaks) say_where(place, capacity);
      return receive_large(group, static_cast<uint8_t*>(target), capacity, patience);
    }
    length = head.words[0] & kLengthMask;
    uint8_t* to = static_cast<uint8_t*>(target);
    const uint64_t most = length < capacity ? length : capacity;
    if (part.rank == 0) {
      if (most > 0) store_word(to, head.words[1], most);
      if (most > 4) store_word(to + 4, head.words[2], most - 4);
      if (length > capacity) half.warn(OH_LANE_TRUNCATED, length, capacity);
    }
    // A length that no sender writes: what follows is not believed.
    const bool whole =
        length <= most_small(half.lane) &&
        read_body<A>(ring, half.position, part, to, length, capacity, first, patience);
    if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
    if (half.agree(group, !whole)) return;
    if (length > capacity) half.fault = OH_LANE_TRUNCATED;
    half.position += lines_for(length);
    if (group.teams() == 1 && group.leads()) half.give_credit();
  }

  template <typename G>
  ONEHOP_PROTOCOL uint32_t give(G& group) {
    half.give(group, [this] { half.give_credit(); });
    return half.fault;
  }

 private:
  ONEHOP_PROTOCOL void say_where(const Place& place, uint64_t capacity) {
    post<A>(theirs(half.lane)->posted, half.epoch, half.position, {place, capacity});
  }

  template <typename G>
  ONEHOP_PROTOCOL void receive_large(G& group, uint8_t* to, uint64_t capacity,
                                     Patience<A>& patience) {
    const LineRing ring = half.incoming();
    const uint64_t at = half.position + 1;
    const uint32_t flag = flag_at(ring.epoch, ring.shift, at);
    Line line{};
    bool there = true;
    if (group.leads()) {
      while (there) {
        line = load_line<A>(line_at(ring, at));
        if (line.flag == flag) break;
        there = !patience.over();
      }
      // What was put is visible to us, and behind the barrier to all.
      A::fence();
    }
    if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
    if (half.agree(group, !there)) return;
    const uint64_t how = group.share(line.words[0] & kLengthMask);
    half.position += kLargeLines;
    const bool fits_here = length <= capacity;
    if (!fits_here || how == kRefused) {
      if (group.leads() && group.team() == 0) half.warn(OH_LANE_TRUNCATED, length, capacity);
      half.fault = OH_LANE_TRUNCATED;
    } else if (how == kStaged) {
      drain(group, to, patience);
    }
    if (group.teams() == 1 && group.leads() && !half.is_broken()) half.give_credit();
  }

  template <typename G>
  ONEHOP_PROTOCOL void drain(G& group, uint8_t* to, Patience<A>& patience) {
    const oh_lane_handle& lane = half.lane;
    half.know_chunks();
    const uint64_t most = uint64_t{1} << lane.chunk_shift;
    const uint64_t count = (length + most - 1) >> lane.chunk_shift;
    const bool single = (lane.flags & OH_LANE_SINGLE) != 0;
    uint64_t* emptied = single ? mine(lane)->kept_emptied : theirs(lane)->emptied;
    for (uint64_t i = group.team(); i < count; i += group.teams()) {
      const uint64_t chunk = half.chunks + i;
      const uint64_t slot = chunk % lane.chunk_slots;
      bool there = true;
      if (group.leads()) {
        while (there && poll<A>(&mine(lane)->filled[slot], half.epoch) < chunk + 1) {
          there = !patience.over();
        }
      }
      if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
      if (half.agree(group, !there)) return;
      const uint64_t begin = i << lane.chunk_shift;
      const uint8_t* from =
          reinterpret_cast<const uint8_t*>(lane.mine + lane.chunks_at + (slot << lane.chunk_shift));
      group.copy(to + begin, from, length - begin < most ? length - begin : most);
      group.sync();
      if (group.leads()) publish<A>(&emptied[slot], half.epoch, chunk + 1);
    }
    half.chunks += count;
  }
};

}  // namespace onehop::detail
