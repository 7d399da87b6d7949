// SPDX-License-Identifier: Apache-2.0
//
// Bandwidth in one direction. Messages: side 0 sends, side 1 receives into as many buffers as the
// window has, and the clock stops when side 1 has told that all are there. Puts and gets: side 0
// works on as many places of side 1's memory. With a window of 1 each operation ends before the
// next one begins.
#include "slots.h"

namespace bench {
namespace {

void send_pass(Side& side, const Spec& spec, Slots& slots, uint64_t count, Outcome* outcome) {
  onehop::Peer& peer = side.peer();
  auto mark = [&](uint64_t i) { slots.mark(i, i + 1 == count); };
  slots.fill_all();
  side.sync();
  Pace pace(spec.window);
  if (spec.window == 1) {
    for (uint64_t i = 0; i < count; ++i) {
      mark(i);
      peer.send(slots.place(i), spec.size, kDataTag);
      pace.begun(i);
    }
  } else {
    auto start = [&](uint64_t i) {
      mark(i);
      return peer.isend(slots.place(i), spec.size, kDataTag);
    };
    outcome->path = keep_in_flight(spec, count, pace, start, [](uint64_t) {});
  }
  uint8_t nothing = 0;
  peer.recv(&nothing, 0, kControlTag);
  pace.ended(spec, count, outcome);
  side.sync();
}

void receive_pass(Side& side, const Spec& spec, Slots& slots, uint64_t count, Outcome* outcome) {
  onehop::Peer& peer = side.peer();
  auto check = [&](uint64_t i) {
    if (spec.stamped) outcome->wrong += check_stamps(slots.at(i), spec.size, i);
  };
  slots.poison_all();
  side.sync();
  Pace unused(spec.window);
  if (spec.window == 1) {
    for (uint64_t i = 0; i < count; ++i) {
      outcome->path = peer.recv(slots.place(i), spec.size, kDataTag).path;
      check(i);
    }
  } else {
    auto start = [&](uint64_t i) { return peer.irecv(slots.place(i), spec.size, kDataTag); };
    outcome->path = keep_in_flight(spec, count, unused, start, check);
  }
  uint8_t nothing = 0;
  peer.send(&nothing, 0, kControlTag);
  outcome->wrong += slots.check_all(count);
  side.sync();
}

Outcome messages(Side& side, const Spec& spec) {
  Outcome outcome;
  Slots slots(side, spec, 0);
  for (uint64_t count : {spec.warmup, spec.iterations}) {
    if (count == 0) continue;
    if (side.first()) {
      send_pass(side, spec, slots, count, &outcome);
    } else {
      receive_pass(side, spec, slots, count, &outcome);
    }
  }
  return outcome;
}

void put_pass(Side& side, const Spec& spec, Slots& slots, const onehop::RemoteRegion& remote,
              uint64_t count, Outcome* outcome) {
  slots.fill_all();
  side.sync();
  Pace pace(spec.window);
  auto start = [&](uint64_t i) {
    slots.mark(i, i + 1 == count);
    return side.peer().put(slots.place(i), remote, slots.offset(i), spec.size);
  };
  outcome->path = keep_in_flight(spec, count, pace, start, [](uint64_t) {});
  pace.ended(spec, count, outcome);
  side.sync();
}

void get_pass(Side& side, const Spec& spec, Slots& slots, const onehop::RemoteRegion& remote,
              uint64_t count, Outcome* outcome) {
  slots.poison_all();
  side.sync();
  Pace pace(spec.window);
  auto start = [&](uint64_t i) {
    if (spec.stamped) poison_stamps(slots.at(i), spec.size, i % spec.window);
    return side.peer().get(slots.place(i), remote, slots.offset(i), spec.size);
  };
  auto ended = [&](uint64_t i) {
    if (spec.stamped) outcome->wrong += check_stamps(slots.at(i), spec.size, i % spec.window);
  };
  outcome->path = keep_in_flight(spec, count, pace, start, ended);
  pace.ended(spec, count, outcome);
  outcome->wrong += slots.check_all(std::min<uint64_t>(count, spec.window));
  side.sync();
}

// The side that owns the memory of puts and gets.
void target_pass(Side& side, const Spec& spec, Slots& slots, uint64_t count, Outcome* outcome) {
  bool put = spec.mode == Mode::kPut;
  if (put) {
    slots.poison_all();
  } else {
    slots.fill_all();
    for (uint64_t i = 0; i < spec.window && spec.stamped; ++i) {
      slots.mark(i, i + 1 == std::min(count, spec.window));
    }
  }
  side.sync();
  side.sync();
  if (put) outcome->wrong += slots.check_all(count);
}

Outcome one_sided(Side& side, const Spec& spec) {
  Outcome outcome;
  bool put = spec.mode == Mode::kPut;
  Slots slots(side, spec, put ? 0 : 1);
  onehop::Region region =
      side.endpoint().register_memory(slots.memory().place(), slots.memory().size());
  onehop::RemoteRegion remote = side.swap_region(region);
  for (uint64_t count : {spec.warmup, spec.iterations}) {
    if (count == 0) continue;
    if (!side.first()) {
      target_pass(side, spec, slots, count, &outcome);
    } else if (put) {
      put_pass(side, spec, slots, remote, count, &outcome);
    } else {
      get_pass(side, spec, slots, remote, count, &outcome);
    }
  }
  side.sync();
  return outcome;
}

}  // namespace

Outcome bandwidth(Side& side, const Spec& spec) {
  if (is_ordered(spec.mode)) return ordered_bandwidth(side, spec);
  if (spec.both) return bandwidth_both(side, spec);
  return spec.mode == Mode::kSendRecv ? messages(side, spec) : one_sided(side, spec);
}

}  // namespace bench
