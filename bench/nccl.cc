// SPDX-License-Identifier: Apache-2.0
#include "nccl.h"

#include <cstring>

#include "payload.h"

namespace bench {
namespace {

constexpr uint64_t kWholeRounds = 2;

}  // namespace

Nccl::Nccl(int number, const std::string& device, const std::vector<std::string>& libraries,
           size_t largest)
    : device_(device),
      meeting_(number),
      number_(number),
      library_(libraries),
      out_(device_, Memory::kCuda, std::max<size_t>(largest, 1)),
      in_(device_, Memory::kCuda, std::max<size_t>(largest, 1)) {
  if (number != 0) return;
  NcclId id;
  library_.check(library_.get_unique_id(&id), "ncclGetUniqueId");
  id_.assign(id.internal, id.internal + sizeof(id.internal));
}

Nccl::~Nccl() {
  Current current(device_);
  if (communicator_) library_.destroy(communicator_);
}

onehop::Bytes Nccl::hello() {
  onehop::Bytes bytes = id_;
  bytes.resize(sizeof(NcclId));
  std::string place = meeting_.place();
  bytes.insert(bytes.end(), place.begin(), place.end());
  return bytes;
}

void Nccl::meet(const onehop::Bytes& hello) {
  NcclId id;
  if (hello.size() < sizeof(id)) throw GpuError("the other side's hello was cut off");
  std::memcpy(&id, meeting_.first() ? id_.data() : hello.data(), sizeof(id));
  meeting_.join(std::string(hello.begin() + sizeof(id), hello.end()));
  meeting_.sync();
  auto before = static_cast<double>(device_.free_memory());
  Current current(device_);
  auto start = Clock::now();
  library_.check(library_.init_rank(&communicator_, 2, id, number_), "ncclCommInitRank");
  auto made = Clock::now();
  meeting_.sync();
  auto begin = Clock::now();
  enqueue(meeting_.first(), 1, 0);
  wait();
  first_ms_ = microseconds(begin, Clock::now()) / 1e3;
  init_ms_ = microseconds(start, made) / 1e3;
  device_bytes_ = before - static_cast<double>(device_.free_memory());
}

void Nccl::enqueue(bool send, size_t size, size_t offset) {
  int other = 1 - number_;
  cuda::Stream stream = device_.stream();
  if (send) {
    library_.check(
        library_.send(out_.data() + offset, size, kNcclUint8, other, communicator_, stream),
        "ncclSend");
  } else {
    library_.check(
        library_.recv(in_.data() + offset, size, kNcclUint8, other, communicator_, stream),
        "ncclRecv");
  }
}

void Nccl::wait() { device_.synchronize(); }

void Nccl::prepare(const Spec& spec, size_t size, uint64_t phase) {
  Buffer bytes(size, false);
  device_.copy(in_.data(), bytes.data(), size);
  fill(bytes.data(), size, seed_of(spec, number_, phase));
  maybe_corrupt(spec, meeting_.first(), bytes.data());
  device_.copy(out_.data(), bytes.data(), size);
  meeting_.sync();
}

uint64_t Nccl::verify(const Spec& spec, size_t size, uint64_t phase) {
  Buffer bytes(size, false);
  device_.copy(bytes.data(), in_.data(), size);
  return count_wrong(bytes.data(), size, seed_of(spec, 1 - number_, phase));
}

StreamPair Nccl::stream_pair(size_t size) {
  return {device_,
          number_,
          out_.data(),
          in_.data(),
          [this] { meeting_.sync(); },
          [this, size] { enqueue(true, size, 0); },
          [this, size] { enqueue(false, size, 0); },
          [this] { enqueue(true, 1, 0); },
          [this] { enqueue(false, 1, 0); }};
}

Outcome Nccl::latency(const Spec& spec) {
  Outcome outcome;
  Current current(device_);
  if (is_ordered(spec.mode)) return stream_latency(spec, stream_pair(spec.size));
  auto round = [&] {
    enqueue(meeting_.first(), spec.size, 0);
    wait();
    enqueue(!meeting_.first(), spec.size, 0);
    wait();
  };
  for (uint64_t phase = 0; phase < kWholeRounds; ++phase) {
    prepare(spec, spec.size, phase);
    round();
    outcome.wrong += verify(spec, spec.size, phase);
  }
  prepare(spec, spec.size, kWholeRounds);
  for (uint64_t i = 0; i < spec.warmup + spec.iterations; ++i) {
    auto start = Clock::now();
    round();
    double us = microseconds(start, Clock::now());
    if (!meeting_.first() || i < spec.warmup) continue;
    outcome.samples_us.push_back(us / 2);
    outcome.seconds += us / 1e6;
    outcome.bytes += 2.0 * static_cast<double>(spec.size);
  }
  outcome.wrong += verify(spec, spec.size, kWholeRounds);
  meeting_.sync();
  return outcome;
}

void Nccl::flow(const Spec& spec, uint64_t count, Outcome* outcome) {
  outcome->samples_us.clear();
  auto begin = Clock::now();
  auto last = begin;
  for (uint64_t i = 0; i < count; ++i) {
    size_t offset = (i % spec.window) * spec.size;
    if (spec.both) {
      library_.check(library_.group_start(), "ncclGroupStart");
      enqueue(true, spec.size, offset);
      enqueue(false, spec.size, offset);
      library_.check(library_.group_end(), "ncclGroupEnd");
    } else {
      enqueue(meeting_.first(), spec.size, offset);
    }
    if ((i + 1) % spec.window != 0 && i + 1 != count) continue;
    wait();
    auto now = Clock::now();
    outcome->samples_us.push_back(microseconds(last, now) /
                                  static_cast<double>(i % spec.window + 1));
    last = now;
  }
  meeting_.sync();
  outcome->seconds = microseconds(begin, Clock::now()) / 1e6;
  outcome->bytes = static_cast<double>(spec.size) * static_cast<double>(count);
}

Outcome Nccl::bandwidth(const Spec& spec) {
  Outcome outcome;
  Current current(device_);
  if (is_ordered(spec.mode)) return stream_bandwidth(spec, stream_pair(spec.size));
  uint64_t phase = 0;
  for (uint64_t count : {spec.warmup, spec.iterations}) {
    if (count == 0) continue;
    size_t used = spec.size * std::min<uint64_t>(count, spec.window);
    prepare(spec, used, ++phase);
    flow(spec, count, &outcome);
    if (spec.both || !meeting_.first()) outcome.wrong += verify(spec, used, phase);
    meeting_.sync();
  }
  if (!meeting_.first()) outcome.samples_us.clear();
  return outcome;
}

}  // namespace bench
