// SPDX-License-Identifier: Apache-2.0
//
// The receiver of messages over a lane (message.h).
//
// Threading: see Half. The target is complete when receive() returns; if `settled`, after give() or
// at the end of a kernel that calls finish().
#pragma once

#include "onehop/detail/message.h"

namespace onehop::detail {

// A group's receiving half of a lane.
template <typename A>
struct Receiver {
  Half<A> half;
  Share share;
  uint32_t most;        // bytes of a small message; a receive of more posts its target at once
  uint32_t kept;        // of finish(): lines_kept()
  uint64_t length = 0;  // of the last message

  template <typename G>
  ONEHOP_PROTOCOL Receiver(const oh_lane_handle& lane, const G& group)
      : half(lane, 1),
        share(group.rank(), group.size()),
        most(small_bytes(lane)),
        kept(lines_kept(lane)) {
    half.looks_up = false;
  }

  template <typename G>
  ONEHOP_PROTOCOL bool take(G& group) {
    return half.take(group, [] {});
  }

  // Receives a message and sets `length`. `place`: of the target, if the peer may map it.
  // `settled`: no other thread of the group uses the target, and its bytes are read only after
  // give(). `kAnySize`: false for a settled message with a `capacity` of at most `most`. Then no
  // thread waits for another one, and finish() follows.
  template <bool kAnySize = true, typename G>
  ONEHOP_PROTOCOL void receive(G& group, void* target, uint64_t capacity, const Place& place = {},
                               bool settled = false) {
    if (half.is_broken()) return;
    // Other threads of the group may have used the target until now. The barrier costs nothing
    // before the message has arrived.
    if (!settled) group.sync();
    half.fault = OH_LANE_OK;
    half.all_well = false;
    length = 0;
    Patience<A> patience(half.lane);
    const bool speaks = group.leads() && group.team() == 0;
    const bool early = kAnySize && capacity > most;
    if (early && speaks) {
      // The peer may write into the target at once: order earlier accesses before that.
      if (place.region != 0 && !place.idle) A::fence();
      say_where(place, capacity);
    }
    if (!kAnySize) give_due_credit(group);
    uint32_t in_head = 0;  // bytes of the head that the target takes as words
    if (in_whole_words(target, 0)) {
      in_head = capacity < kHeadBytes ? static_cast<uint32_t>(capacity) : kHeadBytes;
    }
    // Poll the head alone: polls of lines that have not arrived cost time.
    Line head = load_line<A>(half.cursor.at(0));
    if (!wait_for_line<A>(half.cursor, 0, &head, patience)) head.words[0] = kNothing;
    bool good = true;
    uint32_t lines = 1;
    const bool large = head.words[0] >> 30 == kAnnounced;
    if (head.words[0] <= in_head && head.words[0] % 4 == 0) {
      length = head.words[0];
      if (share.rank == 0) {
        store_head(WholeWords<uint8_t>{static_cast<uint8_t*>(target), head.words[0]}, head);
      }
    } else if (large) {
      length = head.words[1] | static_cast<uint64_t>(head.words[2]) << 32;
    } else {
      good = receive_lines(static_cast<uint8_t*>(target), capacity, head, &lines, patience);
    }
    if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
    if (settled ? !good : half.agree(group, !good)) {
      if constexpr (!kAnySize) group.give_up(half.fault);
      return;
    }
    if (large) {
      if (!early && speaks) say_where(place, capacity);
      if constexpr (kAnySize) {
        return receive_large(group, static_cast<uint8_t*>(target), capacity, patience);
      } else {
        refuse_large(capacity, patience, speaks);
        if (half.is_broken()) group.give_up(half.fault);
        return;
      }
    }
    if (length > capacity) half.fault = OH_LANE_TRUNCATED;
    half.advance(lines);
    if (!settled) give_due_credit(group);
  }

  // Returns, to all threads of the single team, whether the next message has begun to arrive, and
  // then sets `length`. Never waits. `ends`: also checks the host's word if no message has arrived.
  template <typename G>
  ONEHOP_PROTOCOL bool probe(G& group, bool ends) {
    if (half.is_broken()) return false;
    half.fault = OH_LANE_OK;
    uint64_t found = 0;
    if (group.leads()) {
      const Line head = load_line<A>(half.cursor.at(0));
      if (head.flag == half.cursor.flag) {
        found = 1 + length_of(head);
      } else if (ends && A::load_relaxed(&notice(*half.lane)->abort.word) != 0) {
        half.fault = OH_LANE_ABORTED;
      }
    }
    if (!half.learn(group, &found) || found == 0) return false;
    length = found - 1;
    return true;
  }

  template <typename G>
  ONEHOP_PROTOCOL uint32_t give(G& group) {
    give(group, half.owes_credit());
    return half.fault;
  }
  // In place of give(), for a target that is read after the kernel: no vote. At G::end() the leader
  // alone waits for the others, and learns what one of them has passed to G::give_up(). Credit
  // would delay the end of the kernel, so the next receive gives it before it waits, unless it is
  // due for lines_kept().
  template <typename G>
  ONEHOP_PROTOCOL void finish(G& group) {
    const uint32_t fault = group.end();
    if (fault != OH_LANE_OK) half.fault = fault;
    half.all_well = true;
    give(group, group.teams() == 1 ? half.under_way >= kept : half.owes_credit());
  }

 private:
  template <typename G>
  ONEHOP_PROTOCOL void give(G& group, bool credit) {
    half.give(group, credit, [this, credit] {
      if (credit) half.give_credit();
    });
  }

  // Once the team has read its lines. Several teams leave it to give().
  template <typename G>
  ONEHOP_PROTOCOL void give_due_credit(const G& group) {
    if (group.teams() != 1 || !half.owes_credit()) return;
    if (group.leads()) half.give_credit();
    half.under_way = 0;
  }
  static constexpr uint32_t kNothing = ~0u;  // no head begins with it

  // receive() rejects an invalid head. The length fits into the value that learn() broadcasts.
  ONEHOP_PROTOCOL static uint64_t length_of(const Line& head) {
    if (head.words[0] >> 30 != kAnnounced) return head.words[0];
    return head.words[1] | static_cast<uint64_t>(head.words[2] & 0x7fffffu) << 32;
  }
  // Most messages have fewer bytes than the ring has lines, which is quicker to test.
  ONEHOP_PROTOCOL bool is_small(uint32_t word) const {
    return word <= half.cursor.mask || word <= most_small(*half.lane);
  }
  // Reads the thread's lines of a small message. Returns false if its wait ended early, or if no
  // head has arrived, or one of an invalid kind or length.
  ONEHOP_PROTOCOL bool receive_lines(uint8_t* to, uint64_t capacity, const Line& head,
                                     uint32_t* lines, Patience<A>& patience) {
    // At once, whether or not the message has it.
    const Line own = load_line<A>(half.cursor.at(1 + share.rank));
    if (!is_small(head.words[0])) {
      half.fault = OH_LANE_PROTOCOL;  // a timeout replaces it
      return false;
    }
    length = head.words[0];
    *lines = lines_for(head.words[0]);  // while the load is in flight
    const uint32_t room = static_cast<uint32_t>(length < capacity ? length : capacity);
    const bool whole = read_message<A>(half.cursor, share, to, room, head, own, patience);
    if (share.rank == 0 && whole && length > capacity) {
      half.warn(OH_LANE_TRUNCATED, length, capacity);
    }
    return whole;
  }
  ONEHOP_PROTOCOL void say_where(const Place& place, uint64_t capacity) {
    post<A>(theirs(*half.lane)->posted, half.epoch(), half.position, {place, capacity});
  }

  // A large message is longer than the target, so the sender refuses it. Each thread sees that.
  ONEHOP_PROTOCOL void refuse_large(uint64_t capacity, Patience<A>& patience, bool speaks) {
    Line line{};
    if (!wait_for_ending(&line, patience)) {
      half.fault = patience.fault;
    } else if (line.words[0] != (kEnded << 30 | kRefused)) {
      half.fault = OH_LANE_PROTOCOL;
    } else {
      half.fault = OH_LANE_TRUNCATED;
      half.advance(kLargeLines);
      if (speaks) half.warn(OH_LANE_TRUNCATED, length, capacity);
    }
  }
  template <typename G>
  ONEHOP_PROTOCOL void receive_large(G& group, uint8_t* to, uint64_t capacity,
                                     Patience<A>& patience) {
    // For a short message all threads poll its ending, which saves a broadcast. For a long one
    // their polls would slow down the transfer.
    constexpr uint64_t kShort = 1024 * 1024;
    const bool all_look = length <= kShort;
    Line line{};
    // Put bytes are visible to the polling threads, and after the vote to all threads.
    const bool there = !(all_look || group.leads()) || wait_for_ending(&line, patience);
    if (patience.fault != OH_LANE_OK) half.fault = patience.fault;
    if (half.agree(group, !there)) return;
    const uint64_t ending = all_look ? line.words[0] : group.share(line.words[0]);
    const uint64_t how = ending ^ kEnded << 30;
    half.advance(kLargeLines);
    if (how < kPut || how > kRefused) {
      half.fault = OH_LANE_PROTOCOL;
    } else if (length > capacity || how == kRefused) {
      if (group.leads() && group.team() == 0) half.warn(OH_LANE_TRUNCATED, length, capacity);
      half.fault = OH_LANE_TRUNCATED;
    } else if (how == kStaged) {
      drain(group, to, patience);
    }
    if (!half.is_broken()) give_due_credit(group);
  }

  ONEHOP_PROTOCOL bool wait_for_ending(Line* line, Patience<A>& patience) {
    const uint32_t flag = half.cursor.flag_of(1);
    while (true) {
      *line = load_line_acquire<A>(half.cursor.at(1));
      if (line->flag == flag) return true;
      if (patience.over()) return false;
    }
  }
  template <typename G>
  ONEHOP_PROTOCOL void drain(G& group, uint8_t* to, Patience<A>& patience) {
    const oh_lane_handle& lane = *half.lane;
    const Chunks chunks{length, mine(lane)->filled, 0,
                        kSingle<A> ? mine(lane)->kept_emptied : theirs(lane)->emptied};
    using Part = decltype(group.part());
    move_chunks(half, group, chunks, patience, [&](Part& part, uint64_t slot, const Slice& slice) {
      part.copy(to + slice.begin, reinterpret_cast<const uint8_t*>(lane.mine + slot), slice.size);
    });
  }
};

}  // namespace onehop::detail
