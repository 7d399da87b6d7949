// SPDX-License-Identifier: Apache-2.0
#include "stream_loops.h"

#include <algorithm>

#include "kernels.h"
#include "payload.h"

namespace bench {
namespace {

constexpr size_t kRounds = 50;  // of a sample of latency
constexpr size_t kSamples = 10;
constexpr size_t kQuick = 4 << 20;

// Messages beside the timed ones whose every byte is new and checked.
uint64_t whole_messages(const Spec& spec) { return spec.size <= kQuick ? 8 : 1; }
size_t parts(size_t whole, size_t part) { return std::max<size_t>(1, (whole + part - 1) / part); }
bool is_graph(const Spec& spec) {
  return spec.mode == Mode::kGraph || spec.mode == Mode::kGraphPut;
}

// The bytes that a side gives or takes, new in each phase.
class Bytes {
 public:
  struct Part {
    bool gives;
    bool takes;
  };
  Bytes(const Spec& spec, const StreamPair& pair, Part part)
      : spec_(spec), pair_(pair), part_(part), bytes_(spec.size, false) {}

  // Nothing is under way.
  void prepare(bool last = false) {
    ++phase_;
    uint8_t* data = bytes_.data();
    if (part_.takes) {
      poison(data, spec_.size);
      pair_.device.copy(pair_.in, data, spec_.size);
    }
    if (part_.gives) {
      fill(data, spec_.size, seed_of(spec_, pair_.number, phase_));
      maybe_corrupt(spec_, last && pair_.number == 0, data);
      pair_.device.copy(pair_.out, data, spec_.size);
    }
    pair_.sync();
  }
  // The number of wrong ones.
  uint64_t check() {
    if (!part_.takes) return 0;
    pair_.device.copy(bytes_.data(), pair_.in, spec_.size);
    return count_wrong(bytes_.data(), spec_.size, seed_of(spec_, 1 - pair_.number, phase_));
  }

 private:
  const Spec& spec_;
  const StreamPair& pair_;
  Part part_;
  Buffer bytes_;
  uint64_t phase_ = 0;
};

void add_sample(double us, double operations, double bytes, Outcome* outcome) {
  outcome->samples_us.push_back(us / operations);
  outcome->seconds += us / 1e6;
  outcome->bytes += bytes;
}

}  // namespace

Outcome stream_latency(const Spec& spec, const StreamPair& pair) {
  Outcome outcome;
  const bool first = pair.number == 0;
  auto round = [&] {
    if (first) pair.give();
    pair.take();
    if (!first) pair.give();
  };
  Bytes bytes(spec, pair, {true, true});
  auto verify = [&](auto enqueue) {
    for (uint64_t i = 0; i < whole_messages(spec); ++i) {
      bytes.prepare();
      enqueue();
      pair.device.synchronize();
      outcome.wrong += bytes.check();
    }
  };
  // Before anything is captured: the first messages may set up what the rest use.
  verify(round);
  const size_t rounds = std::min(kRounds, std::max<size_t>(spec.iterations, 1));
  const size_t samples = parts(spec.iterations, rounds);
  const Work once(pair.device, round, 1, is_graph(spec));
  const Work work(pair.device, round, rounds, is_graph(spec));
  Marks marks(pair.device, samples + 1);
  verify([&] { once.enqueue(); });
  bytes.prepare(/*last=*/true);
  for (size_t i = 0; i < parts(spec.warmup, rounds); ++i) work.enqueue();
  marks.set();
  for (size_t i = 0; i < samples; ++i) {
    work.enqueue();
    marks.set();
  }
  pair.device.synchronize();
  outcome.wrong += bytes.check();
  for (size_t i = 0; i < samples && first; ++i) {
    const double one_way = 2 * static_cast<double>(rounds);
    add_sample(marks.between(i, i + 1), one_way, one_way * static_cast<double>(spec.size),
               &outcome);
  }
  verify([&] { once.enqueue(); });
  pair.sync();
  return outcome;
}

Outcome stream_bandwidth(const Spec& spec, const StreamPair& pair) {
  Outcome outcome;
  const bool first = pair.number == 0;
  const Work::Body& body = first ? pair.give : pair.take;
  Bytes bytes(spec, pair, {first, !first});
  auto check = [&] {
    pair.device.synchronize();
    outcome.wrong += bytes.check();
  };
  auto verify = [&] {
    for (uint64_t i = 0; i < whole_messages(spec); ++i) {
      bytes.prepare();
      body();
      check();
    }
  };
  verify();
  const size_t each = parts(spec.iterations, kSamples);
  const size_t samples = parts(spec.iterations, each);
  const Work work(pair.device, body, each, is_graph(spec));
  Marks marks(pair.device, samples + 2);
  bytes.prepare(/*last=*/true);
  for (size_t i = 0; i < parts(spec.warmup, each); ++i) work.enqueue();
  marks.set();
  for (size_t i = 0; i < samples; ++i) {
    work.enqueue();
    marks.set();
  }
  first ? pair.await_confirmation() : pair.confirm();
  marks.set();
  check();
  const auto operations = static_cast<double>(each);
  for (size_t i = 0; i < samples && first; ++i) {
    add_sample(marks.between(i, i + 1), operations, operations * static_cast<double>(spec.size),
               &outcome);
  }
  if (first) outcome.seconds = marks.between(0, samples + 1) / 1e6;
  verify();
  pair.sync();
  return outcome;
}

Outcome kernel_latency(const Spec& spec, int number, const KernelPair& pair) {
  Outcome outcome;
  const GpuDriver& driver = pair.device.driver();
  const auto checked_rounds = static_cast<uint32_t>(spec.size <= size_t{64} << 10 ? 50 : 4);
  const auto rounds = static_cast<uint32_t>(parts(spec.iterations, kSamples));
  auto finish = [&] {
    pair.device.synchronize();
    Findings found{};
    pair.device.copy(&found, pair.findings, sizeof(found));
    outcome.wrong += found.wrong;
    if (found.fault == 0) return;
    throw GpuError("a kernel's lane failed with fault " + std::to_string(found.fault) +
                   " (onehop/lane.h: oh_lane_fault)");
  };
  auto begin = [&] {
    BENCH_CUDA(driver, memset8_async, address_of(pair.findings), 0, sizeof(Findings),
               pair.device.stream());
    pair.device.synchronize();
    pair.sync();
  };
  auto verify = [&](bool corrupt) {
    begin();
    pair.launch(true, checked_rounds, corrupt);
    finish();
  };
  // A kernel's first launch waits for those that run, maybe the other side's.
  begin();
  pair.launch(true, 0, false);
  pair.launch(false, 0, false);
  finish();
  verify(false);
  Marks marks(pair.device, kSamples + 1);
  begin();
  pair.launch(false, rounds, false);
  marks.set();
  for (size_t i = 0; i < kSamples; ++i) {
    pair.launch(false, rounds, false);
    marks.set();
  }
  finish();
  const double one_way = 2.0 * rounds;
  for (size_t i = 0; i < kSamples && number == 0; ++i) {
    add_sample(marks.between(i, i + 1), one_way, one_way * static_cast<double>(spec.size),
               &outcome);
  }
  verify(spec.corrupt);
  pair.sync();
  return outcome;
}

}  // namespace bench
