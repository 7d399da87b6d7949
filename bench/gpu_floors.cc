// SPDX-License-Identifier: Apache-2.0
#include "gpu_floors.h"

#include <cstring>

namespace bench {
namespace {

constexpr uint64_t kSeed = 17;
constexpr uint64_t kWholeRounds = 2;
// The driver puts smaller allocations together, and a handle opens all that lie together.
constexpr size_t kOwnBlock = 2 << 20;

// One direction of copies within a process.
class Copies {
 public:
  Copies(const Device& from, const Device& to, const Spec& spec)
      : from_(from),
        driver_(from.driver()),
        spec_(spec),
        source_(from, Memory::kCuda, spec.size * spec.window),
        target_(to, Memory::kCuda, spec.size * spec.window) {}

  void prepare(uint64_t seed) {
    std::vector<uint8_t> bytes(source_.size());
    poison(bytes.data(), bytes.size());
    from_.copy(target_.data(), bytes.data(), bytes.size());
    fill(bytes.data(), bytes.size(), seed);
    maybe_corrupt(spec_, true, bytes.data());
    from_.copy(source_.data(), bytes.data(), bytes.size());
  }
  // Of the first `messages` slots.
  uint64_t check(uint64_t seed, uint64_t messages) {
    std::vector<uint8_t> bytes(spec_.size * std::min<uint64_t>(messages, spec_.window));
    from_.copy(bytes.data(), target_.data(), bytes.size());
    return count_wrong(bytes.data(), bytes.size(), seed);
  }
  void start(uint64_t i) {
    Current current(from_);
    size_t offset = (i % spec_.window) * spec_.size;
    BENCH_CUDA(driver_, memcpy_async, address_of(target_.data()) + offset,
               address_of(source_.data()) + offset, spec_.size, from_.stream());
  }
  void finish() {
    Current current(from_);
    from_.synchronize();
  }

 private:
  const Device& from_;
  const GpuDriver& driver_;
  const Spec& spec_;
  GpuBlock source_;
  GpuBlock target_;
};

// Without it copies between devices go through host memory.
void enable_access(const Device& from, const Device& to) {
  int may = 0;
  const GpuDriver& driver = from.driver();
  if (from.ordinal() == to.ordinal()) return;
  BENCH_CUDA(driver, device_can_access_peer, &may, from.ordinal(), to.ordinal());
  if (!may) return;
  Current current(from);
  cuda::Code code = driver.context_enable_peer(to.context(), 0);
  if (code != cuda::kPeerAccessAlreadyEnabled) driver.check(code, "context_enable_peer");
}

void copy_pass(const Spec& spec, std::vector<std::unique_ptr<Copies>>& ways, uint64_t count,
               Outcome* outcome) {
  outcome->samples_us.clear();
  auto begin = Clock::now();
  auto last = begin;
  for (uint64_t i = 0; i < count; ++i) {
    for (auto& way : ways) way->start(i);
    if ((i + 1) % spec.window != 0 && i + 1 != count) continue;
    for (auto& way : ways) way->finish();
    auto now = Clock::now();
    outcome->samples_us.push_back(microseconds(last, now) /
                                  static_cast<double>(i % spec.window + 1));
    last = now;
  }
  outcome->seconds = microseconds(begin, last) / 1e6;
  outcome->bytes = static_cast<double>(spec.size) * static_cast<double>(count);
}

}  // namespace

Outcome floor_gpu_memcpy(const Spec& spec, const std::string& from, const std::string& to) {
  Device first(from);
  Device second(to);
  enable_access(first, second);
  enable_access(second, first);
  std::vector<std::unique_ptr<Copies>> ways;
  ways.push_back(std::make_unique<Copies>(first, second, spec));
  if (spec.both) ways.push_back(std::make_unique<Copies>(second, first, spec));
  Outcome outcome;
  for (uint64_t count : {spec.warmup, spec.iterations}) {
    if (count == 0) continue;
    for (auto& way : ways) way->prepare(kSeed + count);
    copy_pass(spec, ways, count, &outcome);
    for (auto& way : ways) outcome.wrong += way->check(kSeed + count, count);
  }
  return outcome;
}

MappedPair::MappedPair(int number, const std::string& device, Sizes sizes)
    : device_(device),
      meeting_(number),
      number_(number),
      out_(device_, Memory::kCuda, std::max(sizes.out, kOwnBlock)),
      in_(device_, Memory::kCuda, std::max(sizes.in, kOwnBlock)) {}

MappedPair::~MappedPair() {
  Current current(device_);
  if (theirs_) device_.driver().ipc_close(theirs_);
}

onehop::Bytes MappedPair::hello() const {
  Current current(device_);
  cuda::IpcHandle handle{};
  BENCH_CUDA(device_.driver(), ipc_export, &handle, address_of(in_.data()));
  std::string place = meeting_.place();
  onehop::Bytes bytes(sizeof(handle) + place.size());
  std::memcpy(bytes.data(), &handle, sizeof(handle));
  std::memcpy(bytes.data() + sizeof(handle), place.data(), place.size());
  return bytes;
}

void MappedPair::meet(const onehop::Bytes& hello) {
  cuda::IpcHandle handle{};
  if (hello.size() < sizeof(handle)) throw GpuError("the other side's handle was cut off");
  std::memcpy(&handle, hello.data(), sizeof(handle));
  meeting_.join(std::string(hello.begin() + sizeof(handle), hello.end()));
  Current current(device_);
  BENCH_CUDA(device_.driver(), ipc_open, &theirs_, handle, cuda::kIpcLazyPeerAccess);
}

PutFlag::PutFlag(int number, const std::string& device, size_t largest)
    : MappedPair(number, device, {largest, largest}) {
  Current current(device_);
  BENCH_CUDA(device_.driver(), stream_create, &stream_, cuda::kStreamNonBlocking);
}

PutFlag::~PutFlag() {
  Current current(device_);
  device_.driver().stream_destroy(stream_);
}

void PutFlag::give(size_t size, Producer* producer, uint64_t word) {
  const GpuDriver& driver = device_.driver();
  if (producer) BENCH_CUDA(driver, stream_wait_event, stream_, producer->event(), 0);
  BENCH_CUDA(driver, memcpy_async, theirs_, address_of(out_.data()), size, stream_);
  BENCH_CUDA(driver, stream_synchronize, stream_);
  meeting_.tell(word);
}

void PutFlag::round(const Spec& spec, Producer* producer, uint64_t word) {
  if (meeting_.first()) give(spec.size, producer, word);
  meeting_.await(word);
  if (!meeting_.first()) give(spec.size, producer, word);
}

Outcome PutFlag::latency(const Spec& spec) {
  Outcome outcome;
  Buffer bytes(spec.size, false);
  std::optional<Producer> producer;
  if (spec.mode == Mode::kEvent) producer.emplace(device_, out_.data(), spec.size);
  Producer* behind = producer ? &*producer : nullptr;
  auto prepare = [&](uint64_t phase) {
    poison(bytes.data(), spec.size);
    device_.copy(in_.data(), bytes.data(), spec.size);
    fill(bytes.data(), spec.size, seed_of(spec, number_, phase));
    maybe_corrupt(spec, meeting_.first(), bytes.data());
    device_.copy(out_.data(), bytes.data(), spec.size);
    meeting_.sync();
  };
  auto check = [&](uint64_t phase, uint64_t last) {
    meeting_.sync();
    uint64_t seed = seed_of(spec, 1 - number_, phase);
    device_.copy(bytes.data(), in_.data(), spec.size);
    if (producer) outcome.wrong += producer->take_back(bytes, seed, last);
    outcome.wrong += count_wrong(bytes.data(), spec.size, seed);
    meeting_.sync();
  };
  Current current(device_);
  for (uint64_t phase = 0; phase < kWholeRounds; ++phase) {
    prepare(phase);
    if (producer) producer->produce(phase);
    round(spec, behind, ++word_);
    check(phase, phase);
  }
  prepare(kWholeRounds);
  uint64_t total = spec.warmup + spec.iterations;
  for (uint64_t i = 0; i < total; ++i) {
    if (producer) producer->produce(i);
    if (producer && meeting_.first()) producer->wait();
    auto start = Clock::now();
    round(spec, behind, ++word_);
    double us = microseconds(start, Clock::now());
    if (!meeting_.first() || i < spec.warmup) continue;
    outcome.samples_us.push_back(us / 2);
    outcome.seconds += us / 1e6;
    outcome.bytes += 2.0 * static_cast<double>(spec.size);
  }
  check(kWholeRounds, total - 1);
  return outcome;
}

}  // namespace bench
