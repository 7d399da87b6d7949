// SPDX-License-Identifier: Apache-2.0
#include "pattern_rank.h"

#include <numeric>

#include "onehop/onehop_patterns.hpp"

namespace bench {
namespace {

namespace patterns = onehop::patterns;

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
  Outcome outcome = pattern_loop(spec, {device_, rank(), ranks(), /*padded=*/false,
                                        [this] {
                                          check_peers();
                                          barrier();
                                        },
                                        [this](PatternBytes& bytes) { enqueue(bytes); }});
  check_peers();
  outcome.path = comm_.peer((rank() + 1) % ranks()).stream_info().path;
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
    : rank_(rank), library_(libraries) {
  NcclId id{};
  if (rank.rank() == 0) library_.check(library_.get_unique_id(&id), "ncclGetUniqueId");
  rank.broadcast(&id, sizeof(id));
  Current current(rank.device());
  library_.check(library_.init_rank(&communicator_, static_cast<int>(rank.ranks()), id,
                                    static_cast<int>(rank.rank())),
                 "ncclCommInitRank");
}

NcclRank::~NcclRank() {
  Current current(rank_.device());
  if (communicator_) library_.destroy(communicator_);
}

Outcome NcclRank::run(const PatternSpec& spec) {
  Current current(rank_.device());
  const bool padded = spec.pattern == Pattern::kDispatch;
  return pattern_loop(
      spec, {rank_.device(), rank_.rank(), rank_.ranks(), padded, [this] { rank_.barrier(); },
             [this](PatternBytes& bytes) { enqueue(bytes); }});
}

void NcclRank::enqueue(PatternBytes& bytes) {
  const PatternSpec& spec = bytes.spec();
  const cuda::Stream stream = rank_.device().stream();
  auto moved = [&](uint32_t from, uint32_t to) {
    return spec.pattern == Pattern::kDispatch ? spec.size : part_of(spec, from, to, 0);
  };
  library_.check(library_.group_start(), "ncclGroupStart");
  for (uint32_t other = 0; other < rank_.ranks(); ++other) {
    const int rank = static_cast<int>(other);
    if (sends(spec.pattern, rank_.ranks(), rank_.rank(), other)) {
      library_.check(library_.send(bytes.out(other), moved(rank_.rank(), other), kNcclUint8, rank,
                                   communicator_, stream),
                     "ncclSend");
    }
    if (sends(spec.pattern, rank_.ranks(), other, rank_.rank())) {
      library_.check(library_.recv(bytes.in(other), moved(other, rank_.rank()), kNcclUint8, rank,
                                   communicator_, stream),
                     "ncclRecv");
    }
  }
  library_.check(library_.group_end(), "ncclGroupEnd");
}

}  // namespace bench
