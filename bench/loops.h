// SPDX-License-Identifier: Apache-2.0
//
// The two timed loops. A row consists of several passes: each writes new bytes, transfers messages,
// and checks the last message of each slot completely.
//
// They are templates because of onehop's own wires: a message of 8 bytes in a window takes some 130
// ns, of which virtual calls of a Wire would take 2 to 4 %. Other wires use run().
//
// Threading: each call belongs to one thread.
#pragma once

#include <algorithm>

#include "clock.h"
#include "wire.h"

namespace bench {
namespace loops {

struct Pass {
  uint64_t number;
  uint64_t count;
  bool last = true;
  uint64_t skipped = 0;  // operations before the timed ones
};

template <typename W>
void begin(W& wire, const Pass& pass) {
  if (wire.out()) wire.out()->lay_out(pass.number, pass.last);
  if (wire.in()) wire.in()->clear(pass.number, pass.last);
  wire.link().sync();
}

template <typename W>
void check_all(W& wire, const Pass& pass, Outcome* outcome) {
  if (wire.in()) outcome->wrong += wire.in()->check_all(pass.count, &outcome->checked);
}

template <typename W>
void latency_pass(W& wire, const Pass& pass, Outcome* outcome) {
  const bool first = wire.link().first();
  auto* out = wire.out();
  auto* in = wire.in();
  const double ways = out && in ? 2 : 1;
  const bool early = wire.overwritten() && !first;
  begin(wire, pass);
  for (uint64_t i = 0; i < pass.count && !wire.passive(); ++i) {
    if (out) out->mark(i, pass.last && i + 1 == pass.count);
    if (in) in->expect(i);
    wire.prepare(i);
    auto start = Clock::now();
    if (first) {
      if (out) wire.send(i);
      if (in) wire.recv(i);
    } else {
      if (in) wire.recv(i);
      if (early) outcome->wrong += in->check(i, &outcome->checked);
      if (out) wire.send(i);
    }
    double us = microseconds(start, Clock::now());
    if (in && !early) outcome->wrong += in->check(i, &outcome->checked);
    if (first && i >= pass.skipped) {
      outcome->add(us, ways * static_cast<double>((out ? out : in)->bytes()), 1 / ways);
    }
  }
  wire.link().sync();
  check_all(wire, pass, outcome);
}

// Time per operation: one sample per window, and the total.
class Pace {
 public:
  explicit Pace(size_t window) : window_(window), start_(Clock::now()), last_(start_) {}

  void begun(uint64_t i) {
    if ((i + 1) % window_ != 0) return;
    auto now = Clock::now();
    samples_.push_back(microseconds(last_, now) / static_cast<double>(window_));
    last_ = now;
  }
  void ended(uint64_t count, size_t size, Outcome* outcome) {
    double us = microseconds(start_, Clock::now());
    outcome->seconds = us / 1e6;
    outcome->bytes = static_cast<double>(size) * static_cast<double>(count);
    // There were too few operations to fill a window.
    if (samples_.empty()) samples_.push_back(us / static_cast<double>(count));
    outcome->samples_us = std::move(samples_);
  }

 private:
  size_t window_;
  std::vector<double> samples_;
  Clock::time_point start_;
  Clock::time_point last_;
};

template <typename W>
void flow(W& wire, size_t window, const Pass& pass, Outcome* outcome, Pace& pace) {
  auto* out = wire.out();
  auto* in = wire.in();
  // One direction and one operation at a time: use blocking calls.
  const bool blocking = window == 1 && !(out && in);
  uint64_t oldest = 0;
  auto end_oldest = [&] {
    const uint64_t i = oldest++;
    if (in) {
      if (!blocking) wire.received(i);
      outcome->wrong += in->check(i, &outcome->checked);
    }
    if (out && !blocking) wire.sent(i);
  };
  for (uint64_t i = 0; i < pass.count; ++i) {
    if (i - oldest == window) end_oldest();
    if (in) {
      in->expect(i);
      blocking ? wire.recv(i) : wire.irecv(i);
    }
    if (out) {
      out->mark(i, pass.last && i + 1 == pass.count);
      blocking ? wire.send(i) : wire.isend(i);
    }
    if (window == 1) end_oldest();
    pace.begun(i);
  }
  while (oldest < pass.count) end_oldest();
}

template <typename W>
void bandwidth_pass(W& wire, size_t window, const Pass& pass, Outcome* outcome) {
  begin(wire, pass);
  Pace pace(window);
  if (!wire.passive()) flow(wire, window, pass, outcome, pace);
  if (wire.two_sided()) wire.confirm();
  if (wire.link().first()) {
    pace.ended(pass.count, (wire.out() ? wire.out() : wire.in())->bytes(), outcome);
  }
  wire.link().sync();
  check_all(wire, pass, outcome);
}

// Number of passes of one operation before the timed pass, in which every byte is new and checked.
// More for messages whose bytes are not checked while timed.
inline uint64_t whole_passes(const Spec& spec, bool messages) {
  constexpr size_t kQuick = 4 << 20;
  if (spec.stamped) return 2;
  return messages && spec.size <= kQuick ? 16 : 3;
}

template <typename W>
Outcome finish(W& wire, Outcome outcome) {
  outcome.path = wire.path();
  // The other side may still access the wire's memory.
  wire.link().sync();
  return outcome;
}

// Time of single operations. For messages, a sample is half of a round trip.
template <typename W>
Outcome latency(W& wire, const Spec& spec) {
  Outcome outcome;
  const uint64_t whole = whole_passes(spec, wire.two_sided());
  for (uint64_t i = 0; i < whole; ++i) latency_pass(wire, {i, 1, false, 1}, &outcome);
  if (wire.link().first()) outcome.samples_us.reserve(spec.iterations);
  const Pass timed{whole, spec.warmup + spec.iterations, true, spec.warmup};
  latency_pass(wire, timed, &outcome);
  return finish(wire, std::move(outcome));
}

// Bandwidth with spec.window operations in flight. The clock stops when the receiver has confirmed
// all messages, or when all puts and gets are complete.
template <typename W>
Outcome bandwidth(W& wire, const Spec& spec) {
  Outcome outcome;
  uint64_t number = 0;
  for (uint64_t count : {spec.warmup, spec.iterations}) {
    if (count > 0) bandwidth_pass(wire, spec.window, {number++, count}, &outcome);
  }
  return finish(wire, std::move(outcome));
}

}  // namespace loops

template <typename W>
Outcome run_by(W& wire, const Spec& spec) {
  return spec.op == Op::kBandwidth ? loops::bandwidth(wire, spec) : loops::latency(wire, spec);
}
// Through virtual calls.
inline Outcome run(Wire& wire, const Spec& spec) { return run_by(wire, spec); }

}  // namespace bench
