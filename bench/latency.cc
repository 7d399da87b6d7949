// SPDX-License-Identifier: Apache-2.0
//
// Latency: messages to and fro (one way = half of the round trip), and single puts and gets.
#include "producer.h"

namespace bench {
namespace {

constexpr uint32_t kSlot = 0;
// Messages before the timed ones whose every byte is new and checked: more where the timed ones are
// not looked at.
uint64_t whole_rounds(const Spec& spec) {
  constexpr size_t kQuick = 4 << 20;
  return !spec.stamped && spec.size <= kQuick ? 16 : 2;
}
// One-sided rows check the target's memory whole after each of these.
constexpr size_t kParts = 4;

// Two buffers and how to exchange them.
struct Exchange {
  Buffer& out;
  Buffer& in;
  // Whether the other side may write into `in` as soon as it has our answer.
  bool overwritten;
};

// One round trip: side 0 gives first. Its time in microseconds, at side 0.
template <typename Give, typename Take, typename Check>
double round_trip(bool first, Give give, Take take, Check check) {
  auto start = Clock::now();
  if (first) {
    give();
    take();
  } else {
    take();
    check();
    give();
  }
  return microseconds(start, Clock::now());
}

// `producer`: writes the first bytes of each message; may be null.
template <typename Give, typename Take>
Outcome ping_pong(Side& side, const Spec& spec, Exchange buffers, Producer* producer, Give give,
                  Take take) {
  Outcome outcome;
  uint8_t* out = buffers.out.data();
  uint8_t* in = buffers.in.data();
  uint64_t ours = 0;
  uint64_t theirs = 0;
  auto prepare = [&](uint64_t phase) {
    ours = seed_of(spec, side.number(), phase);
    theirs = seed_of(spec, 1 - side.number(), phase);
    fill(out, spec.size, ours);
    if (!spec.stamped) maybe_corrupt(spec, phase == whole_rounds(spec) && side.first(), out);
    poison(in, spec.size);
    buffers.out.publish();
    buffers.in.publish();
    side.sync();
  };
  auto check_whole = [&](uint64_t last) {
    buffers.in.fetch();
    if (producer) outcome.wrong += producer->take_back(buffers.in, theirs, last);
    outcome.wrong += count_wrong(in, spec.size, theirs);
  };
  for (uint64_t phase = 0; phase < whole_rounds(spec); ++phase) {
    prepare(phase);
    if (producer) producer->produce(phase);
    round_trip(side.first(), give, [&] { outcome.path = take(); }, [] {});
    side.sync();
    check_whole(phase);
  }
  prepare(whole_rounds(spec));
  uint64_t total = spec.warmup + spec.iterations;
  if (side.first()) outcome.samples_us.reserve(spec.iterations);
  for (uint64_t i = 0; i < total; ++i) {
    if (spec.stamped) {
      stamp(out, spec.size, ours, i == 0 ? kNoIteration : i - 1, i);
      maybe_corrupt(spec, i + 1 == total && side.first(), out);
    }
    if (producer) producer->produce(i);
    // What is timed is a message whose bytes are there, behind an event that says so.
    if (producer && side.first()) producer->wait();
    auto check = [&] {
      if (spec.stamped) outcome.wrong += check_stamps(in, spec.size, i);
    };
    bool early = buffers.overwritten && !side.first();
    double us = round_trip(
        side.first(), give, [&] { outcome.path = take(); },
        [&] {
          if (early) check();
        });
    if (!early) check();
    if (!side.first() || i < spec.warmup) continue;
    outcome.samples_us.push_back(us / 2);
    outcome.seconds += us / 1e6;
    outcome.bytes += 2.0 * static_cast<double>(spec.size);
  }
  side.sync();
  if (spec.stamped) {
    outcome.wrong += check_message(in, spec.size, theirs, total - 1);
  } else {
    check_whole(total - 1);
  }
  return outcome;
}

Outcome messages(Side& side, const Spec& spec) {
  Buffer out(side, spec, spec.size);
  Buffer in(side, spec, spec.size);
  uint8_t* from = out.place();
  uint8_t* to = in.place();
  return ping_pong(
      side, spec, {out, in, false}, nullptr, [&] { side.peer().send(from, spec.size, kDataTag); },
      [&] { return side.peer().recv(to, spec.size, kDataTag).path; });
}

Outcome produced_messages(Side& side, const Spec& spec) {
  Buffer out(side, spec, spec.size);
  Buffer in(side, spec, spec.size);
  Producer producer(side.device(), out.place(), spec.size);
  uint8_t* from = out.place();
  uint8_t* to = in.place();
  return ping_pong(
      side, spec, {out, in, false}, &producer,
      [&] { side.peer().isend(from, spec.size, kDataTag, producer.after()).wait(); },
      [&] { return side.peer().recv(to, spec.size, kDataTag).path; });
}

Outcome signalled_puts(Side& side, const Spec& spec) {
  Buffer out(side, spec, spec.size);
  Buffer in(side, spec, spec.size);
  onehop::Region region = side.endpoint().register_memory(in.place(), in.size());
  onehop::RemoteRegion remote = side.swap_region(region);
  oh_path path = OH_PATH_NONE;
  Outcome outcome = ping_pong(
      side, spec, {out, in, true}, nullptr,
      [&] {
        onehop::Request put = side.peer().put(out.place(), remote, 0, spec.size);
        side.peer().signal(kSlot);
        path = put.wait().path;
      },
      [&] {
        side.peer().wait_signal(kSlot);
        return path;
      });
  side.sync();
  return outcome;
}

// The target of puts and gets: it lays out its memory, and looks at it when a part is done.
Outcome target(Side& side, const Spec& spec) {
  Outcome outcome;
  Buffer memory(side, spec, spec.size);
  onehop::Region region = side.endpoint().register_memory(memory.place(), memory.size());
  onehop::RemoteRegion unused = side.swap_region(region);
  uint64_t done = 0;
  for (size_t part = 0; part < kParts; ++part) {
    uint64_t count = (spec.warmup + spec.iterations) * (part + 1) / kParts - done;
    uint64_t seed = seed_of(spec, spec.mode == Mode::kPut ? 0 : 1, part);
    if (spec.mode == Mode::kPut) {
      poison(memory.data(), spec.size);
    } else {
      fill(memory.data(), spec.size, seed);
      stamp(memory.data(), spec.size, seed, kNoIteration, part);
      maybe_corrupt(spec, part + 1 == kParts, memory.data());
    }
    memory.publish();
    side.sync();
    side.sync();
    done += count;
    if (spec.mode == Mode::kPut && count > 0) {
      memory.fetch();
      outcome.wrong +=
          check_message(memory.data(), spec.size, seed, spec.stamped ? done - 1 : part);
    }
  }
  side.sync();
  return outcome;
}

Outcome initiator(Side& side, const Spec& spec) {
  Outcome outcome;
  Buffer memory(side, spec, spec.size);
  onehop::Region region = side.endpoint().register_memory(memory.place(), memory.size());
  onehop::RemoteRegion remote = side.swap_region(region);
  uint64_t total = spec.warmup + spec.iterations;
  outcome.samples_us.reserve(spec.iterations);
  uint64_t i = 0;
  for (size_t part = 0; part < kParts; ++part) {
    bool put = spec.mode == Mode::kPut;
    uint64_t seed = seed_of(spec, put ? 0 : 1, part);
    uint64_t begin = i;
    uint64_t end = total * (part + 1) / kParts;
    if (put) fill(memory.data(), spec.size, seed);
    if (!put) poison(memory.data(), spec.size);
    if (put && !spec.stamped) {
      stamp(memory.data(), spec.size, seed, kNoIteration, part);
      maybe_corrupt(spec, part + 1 == kParts, memory.data());
    }
    memory.publish();
    uint8_t* place = memory.place();
    side.sync();
    for (; i < end; ++i) {
      if (put && spec.stamped) {
        stamp(memory.data(), spec.size, seed, i == begin ? kNoIteration : i - 1, i);
        maybe_corrupt(spec, i + 1 == total, memory.data());
      } else if (spec.stamped) {
        poison_stamps(memory.data(), spec.size, part);
      }
      auto start = Clock::now();
      onehop::Request request = put ? side.peer().put(place, remote, 0, spec.size)
                                    : side.peer().get(place, remote, 0, spec.size);
      outcome.path = request.wait().path;
      double us = microseconds(start, Clock::now());
      if (!put && spec.stamped) outcome.wrong += check_stamps(memory.data(), spec.size, part);
      if (i < spec.warmup) continue;
      outcome.samples_us.push_back(us);
      outcome.seconds += us / 1e6;
      outcome.bytes += static_cast<double>(spec.size);
    }
    side.sync();
    if (!put && end > begin) {
      memory.fetch();
      outcome.wrong += check_message(memory.data(), spec.size, seed, part);
    }
  }
  side.sync();
  return outcome;
}

}  // namespace

Outcome latency(Side& side, const Spec& spec) {
  if (is_ordered(spec.mode)) return ordered_latency(side, spec);
  switch (spec.mode) {
    case Mode::kSendRecv:
      return messages(side, spec);
    case Mode::kEvent:
      return produced_messages(side, spec);
    case Mode::kPutSignal:
      return signalled_puts(side, spec);
    default:
      break;
  }
  return side.first() ? initiator(side, spec) : target(side, spec);
}

}  // namespace bench
