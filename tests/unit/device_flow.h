// SPDX-License-Identifier: Apache-2.0
//
// Messages in one direction of a lane, sent and received by groups of host threads, which compare
// every byte and detect writes outside the target.
//
// Threading: start() makes the threads; the flow outlives them.
#pragma once

#include "unit/device_lanes.h"

namespace unit {

struct Message {
  uint64_t size;
  uint64_t capacity;  // of the receive buffer
};

struct Course {
  std::vector<Message> messages;
  Shape senders = {};
  Shape receivers = {};
  size_t per_take = 1;  // messages per take; 1 with several teams
  bool small = false;   // receives have room for a small message at most
  bool single = false;  // senders poll the receiver's memory
  uint32_t region = 0;  // index of the targets' region, as passed to receives
  uint64_t salt = 0;
};

// Senders poll their credit in the receiver's memory.
struct DelayedSingle : Delayed {};

}  // namespace unit
template <>
inline constexpr bool onehop::detail::kSingle<unit::DelayedSingle> = true;
namespace unit {

class Flow {
 public:
  Flow(TwoSides& sides, int from, Course course)
      : course_(std::move(course)),
        senders_(course_.senders),
        receivers_(course_.receivers),
        tx_(sides.handle(from, 41)),
        rx_(sides.handle(1 - from, 42)) {
    uint64_t most = 0;
    for (const Message& each : course_.messages) most = std::max({most, each.size, each.capacity});
    room_ = (most + 2 * kMargin + kSkews + 15) / 16 * 16;
    sources_.resize(2 * room_ / 16);
    targets_.resize(2 * room_ / 16);
  }

  // The range that receives declare as the course's region.
  const void* targets() const { return targets_.data(); }
  uint64_t targets_size() const { return 2 * room_; }

  void start_senders(Threads& threads) {
    start_all(threads, senders_, [this](HostGroup& group) {
      course_.single ? send_all<DelayedSingle>(group) : send_all<Delayed>(group);
    });
  }
  void start_receivers(Threads& threads) {
    start_all(threads, receivers_, [this](HostGroup& group) {
      course_.single ? receive_all<DelayedSingle>(group) : receive_all<Delayed>(group);
    });
  }
  void start(Threads& threads) {
    start_senders(threads);
    start_receivers(threads);
  }

 private:
  static constexpr uint64_t kMargin = 32;
  static constexpr uint64_t kSkews = 16;
  static constexpr uint8_t kUntouched = 0xa5;

  bool is_large(uint64_t size) const { return size > tx_.small_max || size > most_small(tx_); }
  uint8_t byte_of(uint64_t k, uint64_t i) const {
    const uint64_t seed =
        (course_.salt * 1000003 + k * 7919 + course_.messages[k].size) * 0x9e3779b97f4a7c15ULL;
    return static_cast<uint8_t>((seed >> (i % 7 * 8)) + i * 131 + (i >> 8));
  }
  // Two buffers alternate, so that one is written while other threads of the group still use the
  // other.
  uint8_t* source(uint64_t k) {
    return reinterpret_cast<uint8_t*>(sources_.data()) + k % 2 * room_ + k * 5 % kSkews;
  }
  uint64_t target_offset(uint64_t k) const { return k % 2 * room_ + kMargin + k * 11 % kSkews; }
  uint8_t* target_room(uint64_t k) {
    return reinterpret_cast<uint8_t*>(targets_.data()) + k % 2 * room_;
  }

  // Each thread writes a part that other threads read.
  void fill(const HostGroup& group, uint64_t k) {
    for (uint64_t i = group.rank(); i < course_.messages[k].size; i += group.size()) {
      source(k)[i] = byte_of(k, i);
    }
  }
  template <typename A>
  void send_all(HostGroup& group) {
    for (uint64_t k = 0; k < course_.messages.size(); k += course_.per_take) {
      // In turns as a kernel of the user does, and as an operation of a stream.
      const bool early = course_.per_take == 1 && k % 2 == 1;
      const bool settled = early || group.teams() > 1;
      if (settled) fill(group, k), group.launch_ends();
      Sender<A> sender(tx_, group);
      const bool taken = early     ? sender.take_early(group, UINT64_MAX)
                         : settled ? sender.take_for(group, UINT64_MAX)
                                   : sender.take(group);
      ASSERT_TRUE(taken) << "message " << k << ": " << sender.half.fault;
      uint32_t fault = OH_LANE_OK;
      for (uint64_t i = k; i < k + course_.per_take && i < course_.messages.size(); ++i) {
        if (!settled) fill(group, i);
        sender.send(group, source(i), course_.messages[i].size, settled);
        const Message& message = course_.messages[i];
        const bool refused = is_large(message.size) && message.size > message.capacity;
        fault = refused ? OH_LANE_TRUNCATED : OH_LANE_OK;
        ASSERT_EQ(sender.half.fault, fault) << "message " << i;
      }
      ASSERT_EQ(sender.give(group), fault) << "message " << k;
      group.launch_ends();
    }
  }

  void poison(const HostGroup& group, uint64_t k) {
    for (uint64_t i = group.rank(); i < room_; i += group.size()) target_room(k)[i] = kUntouched;
  }
  template <typename A>
  void receive_all(HostGroup& group) {
    const bool joint = group.teams() > 1;
    for (uint64_t k = 0; k < course_.messages.size(); k += course_.per_take) {
      if (joint) poison(group, k), group.launch_ends();
      Receiver<A> receiver(rx_, group);
      ASSERT_TRUE(receiver.take(group)) << "message " << k << ": " << receiver.half.fault;
      for (uint64_t i = k; i < k + course_.per_take && i < course_.messages.size(); ++i) {
        if (!joint) poison(group, i);
        const Message& message = course_.messages[i];
        Place place{course_.region, target_offset(i)};
        if (course_.region == 0) place = {};
        uint8_t* target = reinterpret_cast<uint8_t*>(targets_.data()) + target_offset(i);
        course_.small ? receiver.template receive<false>(group, target, message.capacity, place)
                      : receiver.template receive<true>(group, target, message.capacity, place);
        ASSERT_EQ(receiver.half.fault,
                  message.size > message.capacity ? OH_LANE_TRUNCATED : OH_LANE_OK)
            << "message " << i;
        ASSERT_EQ(receiver.length, message.size) << "message " << i;
        if (!joint) compare(group, i);
      }
      receiver.give(group);
      group.launch_ends();
      if (joint) compare(group, k), group.launch_ends();
    }
  }
  // Each thread mostly checks bytes that another thread has stored.
  void compare(const HostGroup& group, uint64_t k) {
    const Message& message = course_.messages[k];
    const bool refused = is_large(message.size) && message.size > message.capacity;
    const uint64_t whole = refused ? 0 : std::min(message.size, message.capacity);
    const uint64_t begin = target_offset(k) % room_;
    uint64_t wrong = 0;
    for (uint64_t i = (group.rank() + 1) % group.size(); i < room_; i += group.size()) {
      const bool within = i >= begin && i < begin + whole;
      wrong += target_room(k)[i] != (within ? byte_of(k, i - begin) : kUntouched);
    }
    EXPECT_EQ(wrong, 0u) << "bytes of message " << k << ", of " << message.size << " bytes into "
                         << message.capacity;
  }

  const Course course_;
  Crew senders_;
  Crew receivers_;
  oh_lane_handle tx_;
  oh_lane_handle rx_;
  uint64_t room_ = 0;
  std::vector<Pair> sources_;
  std::vector<Pair> targets_;
};

// Returns one message of each size, to a receive with room for the largest, or with `exact` just
// for it.
inline std::vector<Message> messages_of(const std::vector<uint64_t>& sizes, bool exact = false) {
  std::vector<Message> messages;
  for (uint64_t size : sizes) messages.push_back({size, exact ? size : sizes.back() + 40});
  return messages;
}

}  // namespace unit
