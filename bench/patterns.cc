// SPDX-License-Identifier: Apache-2.0
#include "patterns.h"

#include <algorithm>
#include <numeric>

#include "onehop/onehop_patterns.hpp"

namespace bench {
namespace {

namespace patterns = onehop::patterns;

constexpr size_t kRounds = 50;  // of a sample
constexpr size_t kQuick = 4 << 20;
constexpr size_t kWord = sizeof(uint64_t);
constexpr uint64_t kControlTag = 1;

onehop::Communicator meet(uint32_t rank, uint32_t ranks, const std::string& device,
                          const onehop::Bytes& id) {
  auto options = onehop::detail::sized<oh_comm_options>();
  options.rank = rank;
  options.size = ranks;
  options.unique_id = id.data();
  options.unique_id_size = id.size();
  options.timeout_ns = OH_TIMEOUT_DEFAULT;
  options.endpoint = onehop::detail::sized<oh_endpoint_options>();
  options.endpoint.device = device.c_str();
  return onehop::Communicator(options);
}

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
      bytes_(std::max(spec.size, kWord) * ranks),
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

namespace {

// How one rank takes part.
struct PatternSide {
  const Device& device;
  uint32_t rank;
  uint32_t ranks;
  bool padded;
  std::function<void()> sync;                        // all ranks have come here
  std::function<void(PatternBytes& bytes)> enqueue;  // an exchange, on the device's stream
};

// A sample is the mean of up to 50 exchanges in a row, as the rank's stream sees them.
Outcome pattern_row(const PatternSpec& spec, const PatternSide& side) {
  Outcome outcome;
  PatternBytes bytes(side.device, spec, side.rank, side.ranks, side.padded);
  uint64_t turn = 0;
  auto begin = [&](bool last) {
    bytes.prepare(last ? 0 : ++turn, last);
    side.sync();
  };
  auto end = [&] {
    side.device.synchronize();
    outcome.wrong += bytes.check();
  };
  const size_t each = std::min(kRounds, std::max<size_t>(spec.iterations, 1));
  const size_t samples = (spec.iterations + each - 1) / each;
  const uint64_t whole = spec.size * side.ranks <= kQuick ? 8 : 2;
  std::vector<double> times = time_on_stream({side.device, [&] { side.enqueue(bytes); }, begin, end,
                                              whole, spec.warmup, each, samples, spec.graph});
  times.pop_back();
  for (double us : times) outcome.samples_us.push_back(us / static_cast<double>(each));
  side.sync();
  return outcome;
}

}  // namespace

PatternRank::PatternRank(uint32_t rank, uint32_t ranks, const std::string& device,
                         const onehop::Bytes& id)
    : device_(device), comm_(meet(rank, ranks, device, id)) {
  std::vector<int32_t> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  comm_.warmup(all);
  comm_.barrier();
}

void PatternRank::broadcast(void* data, size_t size) {
  if (rank() != 0) {
    comm_.peer(0).recv(data, size, kControlTag);
    return;
  }
  for (uint32_t other = 1; other < ranks(); ++other) {
    comm_.peer(other).send(data, size, kControlTag);
  }
}

Outcome PatternRank::run(const PatternSpec& spec) {
  Current current(device_);
  Outcome outcome = pattern_row(spec, {device_, rank(), ranks(), /*padded=*/false,
                                       [this] {
                                         check_peers();
                                         barrier();
                                       },
                                       [this](PatternBytes& bytes) { enqueue(bytes); }});
  check_peers();
  outcome.path = oh_path_name(comm_.peer((rank() + 1) % ranks()).stream_info().path);
  return outcome;
}

void PatternRank::check_peers() {
  for (uint32_t other = 0; other < ranks(); ++other) comm_.peer(other).check_async_error();
}

void PatternRank::enqueue(PatternBytes& bytes) {
  const size_t size = bytes.spec().size;
  const onehop::CommunicatorOnStream on = comm_.on(device_.stream());
  const uint32_t next = (rank() + 1) % ranks();
  const uint32_t before = (rank() + ranks() - 1) % ranks();
  switch (bytes.spec().pattern) {
    case Pattern::kSendRecv:
      return patterns::sendrecv(on, {next, bytes.out(next), size},
                                {before, bytes.in(before), size});
    case Pattern::kSendMany:
      return rank() == 0 ? send_to_many(bytes) : on.recv(bytes.in(0), size, 0);
    case Pattern::kRecvMany:
      return rank() == 0 ? receive_from_many(bytes) : on.send(bytes.out(0), size, 0);
    case Pattern::kAllToAllV:
      return all_to_all(bytes);
    case Pattern::kDispatch:
      return patterns::dispatch(on, {bytes.out(0), bytes.out_sizes(), size},
                                {bytes.in(0), bytes.in_sizes(), size});
  }
}

void PatternRank::send_to_many(PatternBytes& bytes) {
  std::vector<patterns::Out> outs;
  for (uint32_t to = 1; to < ranks(); ++to) outs.push_back({to, bytes.out(to), bytes.spec().size});
  patterns::send_many(comm_.on(device_.stream()), outs);
}

void PatternRank::receive_from_many(PatternBytes& bytes) {
  std::vector<patterns::In> ins;
  for (uint32_t from = 1; from < ranks(); ++from) {
    ins.push_back({from, bytes.in(from), bytes.spec().size});
  }
  patterns::recv_many(comm_.on(device_.stream()), ins);
}

void PatternRank::all_to_all(PatternBytes& bytes) {
  patterns::OutParts out{bytes.out(0), {}, {}};
  patterns::InParts in{bytes.in(0), {}, {}};
  for (uint32_t other = 0; other < ranks(); ++other) {
    out.offsets.push_back(other * bytes.spec().size);
    out.sizes.push_back(part_of(bytes.spec(), rank(), other, 0));
    in.offsets.push_back(other * bytes.spec().size);
    in.capacities.push_back(part_of(bytes.spec(), other, rank(), 0));
  }
  patterns::all_to_all_v(comm_.on(device_.stream()), out, in);
}

NcclRank::NcclRank(PatternRank& rank, const std::vector<std::string>& libraries)
    : rank_(rank),
      communicator_(libraries, rank.device(), rank.rank(), rank.ranks(),
                    [&](NcclId* id) { rank.broadcast(id, sizeof(*id)); }) {}

Outcome NcclRank::run(const PatternSpec& spec) {
  Current current(rank_.device());
  const bool padded = spec.pattern == Pattern::kDispatch;
  return pattern_row(
      spec, {rank_.device(), rank_.rank(), rank_.ranks(), padded, [this] { rank_.barrier(); },
             [this](PatternBytes& bytes) { enqueue(bytes); }});
}

void NcclRank::enqueue(PatternBytes& bytes) {
  const PatternSpec& spec = bytes.spec();
  auto moved = [&](uint32_t from, uint32_t to) {
    return spec.pattern == Pattern::kDispatch ? spec.size : part_of(spec, from, to, 0);
  };
  communicator_.begin_group();
  for (uint32_t other = 0; other < rank_.ranks(); ++other) {
    if (sends(spec.pattern, rank_.ranks(), rank_.rank(), other)) {
      communicator_.send(bytes.out(other), moved(rank_.rank(), other), other);
    }
    if (sends(spec.pattern, rank_.ranks(), other, rank_.rank())) {
      communicator_.recv(bytes.in(other), moved(other, rank_.rank()), other);
    }
  }
  communicator_.end_group();
}

}  // namespace bench
