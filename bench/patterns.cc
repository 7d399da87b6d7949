// SPDX-License-Identifier: Apache-2.0
#include "patterns.h"

#include <algorithm>
#include <numeric>

#include "onehop/onehop_patterns.hpp"
#include "streams.h"

namespace bench {
namespace {

namespace patterns = onehop::patterns;

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

}  // namespace

bool sends(Mode pattern, uint32_t ranks, uint32_t from, uint32_t to) {
  if (pattern == Mode::kSendRecv) return to == (from + 1) % ranks;
  if (pattern == Mode::kSendMany) return from == 0 && to != 0;
  if (pattern == Mode::kRecvMany) return to == 0 && from != 0;
  return true;
}

size_t part_of(const Spec& spec, uint32_t from, uint32_t to, uint64_t turn) {
  if (spec.mode != Mode::kAllToAllV && spec.mode != Mode::kDispatch) return spec.size;
  const uint64_t shift = spec.mode == Mode::kDispatch ? turn : 0;
  const uint64_t quarters = 1 + (uint64_t{3} * from + to + shift) % 4;
  return (spec.size * quarters + 3) / 4;
}

size_t busiest(const Spec& spec, uint32_t ranks) {
  size_t most = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    size_t out = 0;
    size_t in = 0;
    for (uint32_t other = 0; other < ranks; ++other) {
      if (other == rank) continue;
      if (sends(spec.mode, ranks, rank, other)) out += part_of(spec, rank, other, 0);
      if (sends(spec.mode, ranks, other, rank)) in += part_of(spec, other, rank, 0);
    }
    most = std::max({most, out, in});
  }
  return most;
}

Parts::Parts(const Device& device, const Spec& spec, uint32_t rank, uint32_t ranks, bool padded,
             std::unique_ptr<GpuBlock> parts)
    : device_(device),
      spec_(spec),
      rank_(rank),
      ranks_(ranks),
      padded_(padded),
      bytes_(std::max(spec.size, kWord) * ranks),
      parts_(std::move(parts)),
      sizes_(device, Memory::kCuda, kWord * ranks) {}

uint64_t Parts::seed(uint32_t from, uint32_t to) const {
  return ((pass_ * ranks_ + from) * ranks_ + to) * 0x100000001b3ULL + spec_.size;
}

void Parts::begin(uint64_t pass, bool last) {
  pass_ = pass;
  turn_ = last ? 0 : pass + 1;
  poison(bytes_.data(), bytes_.size());
}

void Parts::clear(uint64_t pass, bool last) {
  begin(pass, last);
  device_.copy(parts_->data(), bytes_.data(), parts_->size());
  device_.copy(sizes_.data(), bytes_.data(), sizes_.size());
}

void Parts::lay_out(uint64_t pass, bool last) {
  begin(pass, last);
  uint8_t* data = bytes_.data();
  std::vector<uint64_t> sizes(ranks_);
  bool spoil = spec_.corrupt && last && rank_ == (spec_.mode == Mode::kRecvMany ? 1 : 0);
  for (uint32_t to = 0; to < ranks_; ++to) {
    sizes[to] = part_of(spec_, rank_, to, turn_);
    fill(data + to * spec_.size, spec_.size, seed(rank_, to));
    if (to == rank_ || !sends(spec_.mode, ranks_, rank_, to)) continue;
    if (std::exchange(spoil, false)) data[to * spec_.size] ^= 1;
  }
  device_.copy(parts_->data(), data, parts_->size());
  device_.copy(sizes_.data(), sizes.data(), sizes_.size());
}

uint64_t Parts::check_all(uint64_t, uint64_t*) {
  uint64_t wrong = 0;
  const bool sized = spec_.mode == Mode::kDispatch && !padded_;
  std::vector<uint64_t> sizes(ranks_);
  device_.copy(sizes.data(), sizes_.data(), sizes_.size());
  device_.copy(bytes_.data(), parts_->data(), parts_->size());
  for (uint32_t from = 0; from < ranks_; ++from) {
    const bool comes = sends(spec_.mode, ranks_, from, rank_);
    const size_t counts = comes ? part_of(spec_, from, rank_, turn_) : 0;
    const uint8_t* part = bytes_.data() + from * spec_.size;
    wrong += count_wrong(part, counts, seed(from, rank_));
    if (!comes || !padded_) wrong += count_touched(part + counts, spec_.size - counts);
    if (sized && sizes[from] != counts) wrong += kWord;
  }
  return wrong;
}

PatternWire::PatternWire(Link& link, uint32_t ranks, const Device& device, const Spec& spec,
                         bool padded, const std::function<std::unique_ptr<GpuBlock>(size_t)>& make)
    : Wire(link), spec_(spec), rank_(static_cast<uint32_t>(link.number())), ranks_(ranks) {
  const size_t size = spec.size * ranks;
  auto mine = std::make_unique<Parts>(device, spec, rank_, ranks, padded, make(size));
  auto theirs = std::make_unique<Parts>(device, spec, rank_, ranks, padded, make(size));
  mine_ = mine.get();
  theirs_ = theirs.get();
  out_ = std::move(mine);
  in_ = std::move(theirs);
}

namespace {

class Patterns final : public PatternWire {
 public:
  Patterns(PatternRank& rank, const Spec& spec)
      : PatternWire(rank, rank.ranks(), rank.device(), spec, /*padded=*/false,
                    [&](size_t size) {
                      return std::make_unique<GpuBlock>(rank.device(), spec.memory, size);
                    }),
        comm_(rank.comm()),
        on_(comm_.on(rank.device().stream())) {}

  void isend(uint64_t) override {
    const size_t size = spec_.size;
    const uint32_t next = (rank_ + 1) % ranks_;
    const uint32_t before = (rank_ + ranks_ - 1) % ranks_;
    switch (spec_.mode) {
      case Mode::kSendMany:
        return rank_ == 0 ? send_to_many() : on_.recv(theirs_->part(0), size, 0);
      case Mode::kRecvMany:
        return rank_ == 0 ? receive_from_many() : on_.send(mine_->part(0), size, 0);
      case Mode::kAllToAllV:
        return all_to_all();
      case Mode::kDispatch:
        return patterns::dispatch(on_, {mine_->part(0), mine_->sizes(), size},
                                  {theirs_->part(0), theirs_->sizes(), size});
      default:
        return patterns::sendrecv(on_, {next, mine_->part(next), size},
                                  {before, theirs_->part(before), size});
    }
  }
  std::string path() const override {
    return oh_path_name(comm_.peer((rank_ + 1) % ranks_).stream_info().path);
  }

 private:
  void send_to_many() {
    std::vector<patterns::Out> outs;
    for (uint32_t to = 1; to < ranks_; ++to) outs.push_back({to, mine_->part(to), spec_.size});
    patterns::send_many(on_, outs);
  }
  void receive_from_many() {
    std::vector<patterns::In> ins;
    for (uint32_t from = 1; from < ranks_; ++from) {
      ins.push_back({from, theirs_->part(from), spec_.size});
    }
    patterns::recv_many(on_, ins);
  }
  void all_to_all() {
    patterns::OutParts out{mine_->part(0), {}, {}};
    patterns::InParts in{theirs_->part(0), {}, {}};
    for (uint32_t other = 0; other < ranks_; ++other) {
      out.offsets.push_back(other * spec_.size);
      out.sizes.push_back(part_of(spec_, rank_, other, 0));
      in.offsets.push_back(other * spec_.size);
      in.capacities.push_back(part_of(spec_, other, rank_, 0));
    }
    patterns::all_to_all_v(on_, out, in);
  }

  onehop::Communicator& comm_;
  const onehop::CommunicatorOnStream on_;
};

}  // namespace

PatternRank::PatternRank(uint32_t rank, uint32_t ranks, const std::string& device,
                         const onehop::Bytes& id)
    : device_(device), comm_(meet(rank, ranks, device, id)) {
  std::vector<int32_t> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  comm_.warmup(all);
  comm_.barrier();
}

Bytes PatternRank::swap(const Bytes& bytes) {
  Bytes found = bytes;
  if (!first()) {
    comm_.peer(0).recv(found.data(), found.size(), kControlTag);
    return found;
  }
  for (uint32_t other = 1; other < ranks(); ++other) {
    comm_.peer(other).send(bytes.data(), bytes.size(), kControlTag);
  }
  return found;
}

void PatternRank::sync() {
  for (uint32_t other = 0; other < ranks(); ++other) comm_.peer(other).check_async_error();
  comm_.barrier();
}

Outcome PatternRank::run(const Spec& spec) {
  Current current(device_);
  Patterns wire(*this, spec);
  return stream_row(wire, device_, spec);
}

}  // namespace bench
