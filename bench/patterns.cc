// SPDX-License-Identifier: Apache-2.0
#include "patterns.h"

#include <algorithm>

#include "payload.h"

namespace bench {
namespace {

constexpr size_t kRounds = 50;  // of a sample
constexpr size_t kQuick = 4 << 20;
constexpr size_t kWord = sizeof(uint64_t);

bool has_parts(Pattern pattern) {
  return pattern == Pattern::kAllToAllV || pattern == Pattern::kDispatch;
}

}  // namespace

bool sends(Pattern pattern, uint32_t ranks, uint32_t from, uint32_t to) {
  switch (pattern) {
    case Pattern::kSendRecv:
      return to == (from + 1) % ranks;
    case Pattern::kSendMany:
      return from == 0 && to != 0;
    case Pattern::kRecvMany:
      return to == 0 && from != 0;
    case Pattern::kAllToAllV:
    case Pattern::kDispatch:
      return true;
  }
  return false;
}

size_t part_of(const PatternSpec& spec, uint32_t from, uint32_t to, uint64_t turn) {
  if (!has_parts(spec.pattern)) return spec.size;
  const uint64_t shift = spec.pattern == Pattern::kDispatch ? turn : 0;
  const uint64_t quarters = 1 + (uint64_t{3} * from + to + shift) % 4;
  return (spec.size * quarters + 3) / 4;
}

size_t busiest(const PatternSpec& spec, uint32_t ranks) {
  size_t most = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    size_t out = 0;
    size_t in = 0;
    for (uint32_t other = 0; other < ranks; ++other) {
      if (other == rank) continue;
      if (sends(spec.pattern, ranks, rank, other)) out += part_of(spec, rank, other, 0);
      if (sends(spec.pattern, ranks, other, rank)) in += part_of(spec, other, rank, 0);
    }
    most = std::max({most, out, in});
  }
  return most;
}

PatternBytes::PatternBytes(const Device& device, const PatternSpec& spec, uint32_t rank,
                           uint32_t ranks, bool padded)
    : device_(device),
      spec_(spec),
      rank_(rank),
      ranks_(ranks),
      padded_(padded),
      bytes_(std::max(spec.size, kWord) * ranks, false),
      out_(device, spec.memory, spec.size * ranks),
      in_(device, spec.memory, spec.size * ranks),
      out_sizes_(device, Memory::kCuda, kWord * ranks),
      in_sizes_(device, Memory::kCuda, kWord * ranks) {}

uint64_t PatternBytes::seed(uint32_t from, uint32_t to) const {
  return ((phase_ * ranks_ + from) * ranks_ + to) * 0x100000001b3ULL + spec_.size;
}

void PatternBytes::prepare(uint64_t turn, bool last) {
  ++phase_;
  turn_ = turn;
  uint8_t* data = bytes_.data();
  poison(data, bytes_.size());
  device_.copy(in_.data(), data, in_.size());
  device_.copy(in_sizes_.data(), data, in_sizes_.size());
  std::vector<uint64_t> sizes(ranks_);
  bool spoil = spec_.corrupt && last && rank_ == (spec_.pattern == Pattern::kRecvMany ? 1 : 0);
  for (uint32_t to = 0; to < ranks_; ++to) {
    sizes[to] = part_of(spec_, rank_, to, turn);
    fill(data + to * spec_.size, spec_.size, seed(rank_, to));
    if (to == rank_ || !sends(spec_.pattern, ranks_, rank_, to)) continue;
    if (std::exchange(spoil, false)) data[to * spec_.size] ^= 1;
  }
  device_.copy(out_.data(), data, out_.size());
  device_.copy(out_sizes_.data(), sizes.data(), out_sizes_.size());
}

uint64_t PatternBytes::check() {
  uint64_t wrong = 0;
  const bool sized = spec_.pattern == Pattern::kDispatch && !padded_;
  std::vector<uint64_t> sizes(ranks_);
  device_.copy(sizes.data(), in_sizes_.data(), in_sizes_.size());
  device_.copy(bytes_.data(), in_.data(), in_.size());
  for (uint32_t from = 0; from < ranks_; ++from) {
    const bool comes = sends(spec_.pattern, ranks_, from, rank_);
    const size_t counts = comes ? part_of(spec_, from, rank_, turn_) : 0;
    const uint8_t* part = bytes_.data() + from * spec_.size;
    wrong += count_wrong(part, counts, seed(from, rank_));
    if (!comes || !padded_) wrong += count_touched(part + counts, spec_.size - counts);
    if (sized && sizes[from] != counts) wrong += kWord;
  }
  return wrong;
}

Outcome pattern_loop(const PatternSpec& spec, const PatternSide& side) {
  Outcome outcome;
  const Device& device = side.device;
  PatternBytes bytes(device, spec, side.rank, side.ranks, side.padded);
  auto round = [&] { side.enqueue(bytes); };
  auto begin = [&](uint64_t turn, bool last) {
    bytes.prepare(turn, last);
    side.sync();
  };
  auto end = [&] {
    device.synchronize();
    outcome.wrong += bytes.check();
  };
  const uint64_t whole = spec.size * side.ranks <= kQuick ? 8 : 2;
  auto verify = [&](auto enqueue) {
    for (uint64_t turn = 1; turn <= whole; ++turn) {
      begin(turn, /*last=*/false);
      enqueue();
      end();
    }
  };
  // Before anything is captured: the first exchanges set up what the rest use.
  verify(round);
  const size_t rounds = std::min(kRounds, std::max<size_t>(spec.iterations, 1));
  const size_t samples = (spec.iterations + rounds - 1) / rounds;
  const Work once(device, round, 1, spec.graph);
  const Work work(device, round, rounds, spec.graph);
  Marks marks(device, samples + 1);
  verify([&] { once.enqueue(); });
  begin(0, /*last=*/true);
  for (size_t i = 0; i < spec.warmup; i += rounds) work.enqueue();
  marks.set();
  for (size_t i = 0; i < samples; ++i) {
    work.enqueue();
    marks.set();
  }
  end();
  const auto operations = static_cast<double>(rounds);
  for (size_t i = 0; i < samples; ++i) {
    outcome.samples_us.push_back(marks.between(i, i + 1) / operations);
  }
  verify([&] { once.enqueue(); });
  side.sync();
  return outcome;
}

}  // namespace bench
