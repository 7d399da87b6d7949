// SPDX-License-Identifier: Apache-2.0
#include "nccl.h"

#include <dlfcn.h>

#include <cstring>

#include "payload.h"

namespace bench {
namespace {

// As nccl.h declares them.
struct UniqueId {
  char internal[128];
};
constexpr int kUint8 = 1;
constexpr uint64_t kWholeRounds = 2;

}  // namespace

struct Nccl::Functions {
  int (*get_version)(int*);
  const char* (*get_error)(int);
  int (*get_unique_id)(UniqueId*);
  int (*init_rank)(void**, int, UniqueId, int);
  int (*send)(const void*, size_t, int, int, void*, cuda::Stream);
  int (*recv)(void*, size_t, int, int, void*, cuda::Stream);
  int (*group_start)();
  int (*group_end)();
  int (*destroy)(void*);

  explicit Functions(const std::vector<std::string>& libraries) {
    void* library = nullptr;
    std::string why;
    for (const std::string& name : libraries) {
      library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library) break;
      why = dlerror();
    }
    if (!library) throw GpuError("NCCL is not here: " + why);
    auto find = [&](const char* symbol, auto* function) {
      void* found = dlsym(library, symbol);
      if (!found) throw GpuError(std::string("this NCCL has no ") + symbol);
      std::memcpy(function, &found, sizeof(found));
    };
    find("ncclGetVersion", &get_version);
    find("ncclGetErrorString", &get_error);
    find("ncclGetUniqueId", &get_unique_id);
    find("ncclCommInitRank", &init_rank);
    find("ncclSend", &send);
    find("ncclRecv", &recv);
    find("ncclGroupStart", &group_start);
    find("ncclGroupEnd", &group_end);
    find("ncclCommDestroy", &destroy);
  }
};

Nccl::Nccl(int number, const std::string& device, const std::vector<std::string>& libraries,
           size_t largest)
    : device_(device),
      meeting_(number),
      number_(number),
      functions_(std::make_unique<Functions>(libraries)),
      out_(device_, Memory::kCuda, std::max<size_t>(largest, 1)),
      in_(device_, Memory::kCuda, std::max<size_t>(largest, 1)) {
  if (number != 0) return;
  UniqueId id;
  check(functions_->get_unique_id(&id), "ncclGetUniqueId");
  id_.assign(id.internal, id.internal + sizeof(id.internal));
}

Nccl::~Nccl() {
  Current current(device_);
  if (communicator_) functions_->destroy(communicator_);
}

void Nccl::check(int code, const char* call) const {
  if (code != 0) throw GpuError(std::string(call) + " failed: " + functions_->get_error(code));
}

std::string Nccl::version() const {
  int version = 0;
  check(functions_->get_version(&version), "ncclGetVersion");
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

onehop::Bytes Nccl::hello() {
  onehop::Bytes bytes = id_;
  bytes.resize(sizeof(UniqueId));
  std::string place = meeting_.place();
  bytes.insert(bytes.end(), place.begin(), place.end());
  return bytes;
}

void Nccl::meet(const onehop::Bytes& hello) {
  UniqueId id;
  if (hello.size() < sizeof(id)) throw GpuError("the other side's hello was cut off");
  std::memcpy(&id, meeting_.first() ? id_.data() : hello.data(), sizeof(id));
  meeting_.join(std::string(hello.begin() + sizeof(id), hello.end()));
  meeting_.sync();
  auto before = static_cast<double>(device_.free_memory());
  Current current(device_);
  auto start = Clock::now();
  check(functions_->init_rank(&communicator_, 2, id, number_), "ncclCommInitRank");
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
    check(functions_->send(out_.data() + offset, size, kUint8, other, communicator_, stream),
          "ncclSend");
  } else {
    check(functions_->recv(in_.data() + offset, size, kUint8, other, communicator_, stream),
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
      check(functions_->group_start(), "ncclGroupStart");
      enqueue(true, spec.size, offset);
      enqueue(false, spec.size, offset);
      check(functions_->group_end(), "ncclGroupEnd");
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
