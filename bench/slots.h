// SPDX-License-Identifier: Apache-2.0
//
// What the loops with several operations in flight share: the places of a row's messages, the time
// they take, and the window.
//
// Threading: none; each side has its own.
#pragma once

#include <algorithm>
#include <optional>

#include "payload.h"
#include "side.h"

namespace bench {

// Memory of a row: one slot of `size` bytes per operation in flight, each a message of its own.
class Slots {
 public:
  Slots(const Side& side, const Spec& spec, int writer)
      : spec_(spec), writer_(writer), memory_(side, spec, spec.size * spec.window) {}

  size_t offset(uint64_t i) const { return (i % spec_.window) * spec_.size; }
  uint8_t* at(uint64_t i) { return memory_.data() + offset(i); }
  // What transfers use.
  uint8_t* place(uint64_t i) { return memory_.place() + offset(i); }
  Buffer& memory() { return memory_; }
  uint64_t seed(uint64_t i) const { return seed_of(spec_, writer_, i % spec_.window); }

  void fill_all() {
    for (uint64_t i = 0; i < spec_.window; ++i) fill(at(i), spec_.size, seed(i));
    if (!spec_.stamped) maybe_corrupt(spec_, true, at(0));
    memory_.publish();
  }
  void poison_all() {
    poison(memory_.data(), memory_.size());
    memory_.publish();
  }
  // Makes the slot hold message i; `last`: of all.
  void mark(uint64_t i, bool last) {
    if (!spec_.stamped) return;
    stamp(at(i), spec_.size, seed(i), i < spec_.window ? kNoIteration : i - spec_.window, i);
    maybe_corrupt(spec_, last, at(i));
  }
  // Checks the last message of each slot, of `count` messages.
  uint64_t check_all(uint64_t count) {
    uint64_t wrong = 0;
    memory_.fetch();
    for (uint64_t i = count - std::min<uint64_t>(count, spec_.window); i < count; ++i) {
      wrong += spec_.stamped ? check_message(at(i), spec_.size, seed(i), i)
                             : count_wrong(at(i), spec_.size, seed(i));
    }
    return wrong;
  }

 private:
  const Spec& spec_;
  int writer_;
  Buffer memory_;
};

// Time per operation, taken once per window, and over all.
class Pace {
 public:
  explicit Pace(size_t window) : window_(window), start_(Clock::now()), last_(start_) {}

  void begun(uint64_t i) {
    if ((i + 1) % window_ != 0) return;
    auto now = Clock::now();
    samples_.push_back(microseconds(last_, now) / static_cast<double>(window_));
    last_ = now;
  }
  void ended(const Spec& spec, uint64_t count, Outcome* outcome) {
    double us = microseconds(start_, Clock::now());
    outcome->seconds = us / 1e6;
    outcome->bytes = static_cast<double>(spec.size) * static_cast<double>(count);
    // Too few operations to fill a window.
    if (samples_.empty()) samples_.push_back(us / static_cast<double>(count));
    outcome->samples_us = std::move(samples_);
  }

 private:
  size_t window_;
  std::vector<double> samples_;
  Clock::time_point start_;
  Clock::time_point last_;
};

// Keeps `spec.window` operations in flight: start(i) begins one, ended(i) follows its end, and only
// then is its slot used again.
template <typename Start, typename Ended>
oh_path keep_in_flight(const Spec& spec, uint64_t count, Pace& pace, Start start, Ended ended) {
  oh_path path = OH_PATH_NONE;
  std::vector<std::optional<onehop::Request>> window(spec.window);
  auto end = [&](uint64_t i) {
    path = window[i % spec.window]->wait().path;
    ended(i);
  };
  uint64_t oldest = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (i - oldest == spec.window) end(oldest++);
    window[i % spec.window] = start(i);
    if (spec.window == 1) end(oldest++);
    pace.begun(i);
  }
  while (oldest < count) end(oldest++);
  return path;
}

}  // namespace bench
