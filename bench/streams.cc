// SPDX-License-Identifier: Apache-2.0
#include "streams.h"

#include <algorithm>
#include <optional>

#if defined(OH_BENCH_KERNELS)
// Embedded in the module in the same way as the library's kernel image.
extern "C" const uint8_t oh_kernel_image_begin[];
#endif

namespace bench {
namespace {

const void* image() {
#if defined(OH_BENCH_KERNELS)
  return oh_kernel_image_begin;
#else
  return nullptr;
#endif
}

constexpr size_t kRounds = 50;  // per latency sample
constexpr size_t kSamples = 10;

size_t parts(size_t whole, size_t part) { return std::max<size_t>(1, (whole + part - 1) / part); }

// Limit in bytes of the checked operations after the timed ones: checked by the host, and by
// kernels.
constexpr size_t kChecked = size_t{256} << 20;
constexpr size_t kCheckedByKernels = size_t{1} << 30;

size_t size_of(const std::vector<Payload::Place>& places) {
  size_t size = 0;
  for (const Payload::Place& place : places) size += place.size;
  return size;
}

// Device memory that holds the bytes of several rounds.
class Bank {
 public:
  Bank(const Device& device, const Payload& payload, size_t rounds)
      : device_(device),
        places_(payload.places()),
        block_(device, Memory::kCuda, std::max<size_t>(1, rounds * size_of(places_))) {}

  // Stream-ordered copies from the payload's memory, and back.
  void store(size_t round) const { copy(round, /*back=*/false); }
  void load(size_t round) const { copy(round, /*back=*/true); }
  // Poisons the payload's memory.
  void clear() const {
    for (const Payload::Place& place : places_) {
      if (place.size == 0) continue;
      BENCH_CUDA(device_.driver(), memset8_async, address_of(place.at), kPoison, place.size,
                 device_.stream());
    }
  }

 private:
  void copy(size_t round, bool back) const {
    uint8_t* kept = block_.data() + round * size_of(places_);
    for (const Payload::Place& place : places_) {
      if (place.size == 0) continue;
      BENCH_CUDA(device_.driver(), memcpy_async, address_of(back ? place.at : kept),
                 address_of(back ? kept : place.at), place.size, device_.stream());
      kept += place.size;
    }
  }

  const Device& device_;
  const std::vector<Payload::Place> places_;
  const GpuBlock block_;
};

// Whether the initiator transfers the bytes without waiting for the receiver.
bool is_unasked(const Spec& spec) {
  return spec.op == Op::kBatch || spec.mode == Mode::kStreamPut || spec.mode == Mode::kKernelPut;
}

// Rounds with distinct bytes, enqueued like the timed ones, and all checked.
class CheckedRounds {
 public:
  // `each`: rounds of a sample. `pass`: the first unused pass number.
  CheckedRounds(Wire& wire, const Device& device, const Spec& spec, size_t each, uint64_t pass)
      : wire_(wire), device_(device), spec_(spec), pass_(pass) {
    const Payload* payload = wire.out() ? wire.out() : wire.in();
    const size_t bytes = std::max<size_t>(1, size_of(payload->places()));
    each_ = std::clamp<size_t>(kChecked / bytes, 1, each);
    most_samples_ = std::max<size_t>(1, kChecked / (each_ * bytes));
    if (wire.out()) out_.emplace(device, *wire.out(), each_);
    if (wire.in()) in_.emplace(device, *wire.in(), each_);
  }

  void run(const Work::Body& round, size_t samples, Outcome* outcome) {
    samples = std::min(samples, most_samples_);
    size_t next = 0;
    auto body = [&] {
      const size_t slot = next++ % each_;
      if (out_) out_->load(slot);
      round();
      if (in_) {
        in_->store(slot);
        in_->clear();
      }
      if (is_unasked(spec_)) wire_.confirm_on_stream();
    };
    const Work work(device_, body, each_, spec_.graph);
    for (size_t i = 0; i < samples; ++i, pass_ += each_) {
      begin(/*last=*/i + 1 == samples);
      work.enqueue();
      check(outcome);
    }
  }

 private:
  // The corrupted round is in the middle, so that others follow it.
  bool is_last(bool last, size_t slot) const { return last && slot == each_ / 2; }
  void begin(bool last) {
    last_ = last;
    for (size_t slot = 0; out_ && slot < each_; ++slot) {
      wire_.out()->lay_out(pass_ + slot, is_last(last, slot));
      out_->store(slot);
    }
    if (in_) wire_.in()->clear(pass_, false);
    device_.synchronize();
    wire_.link().sync();
  }
  void check(Outcome* outcome) {
    device_.synchronize();
    for (size_t slot = 0; in_ && slot < each_; ++slot) {
      wire_.in()->clear(pass_ + slot, is_last(last_, slot));
      in_->load(slot);
      device_.synchronize();
      outcome->wrong += wire_.in()->check_all(1, &outcome->checked);
    }
  }

  Wire& wire_;
  const Device& device_;
  const Spec& spec_;
  uint64_t pass_;
  size_t each_ = 1;
  size_t most_samples_ = 1;
  bool last_ = false;
  std::optional<Bank> out_;
  std::optional<Bank> in_;
};

}  // namespace

std::string why_no_kernel(const Device& device, const std::string& name) {
  try {
    Current current(device);
    Kernels(device).find(name.c_str());
  } catch (const GpuError& failure) {
    return failure.what();
  }
  return "";
}

Kernels::Kernels(const Device& device) : device_(device) {
  if (!image()) throw GpuError("this build has no kernels of the benchmark: ONEHOP_CUDA is off");
  BENCH_CUDA(device.driver(), module_load, &module_, image());
  constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  int major = 0;
  BENCH_CUDA(device.driver(), device_attribute, &major, kMajor, device.ordinal());
  early_ = major >= 9 && device.driver().version() >= 12030;
}

Kernels::~Kernels() { device_.driver().module_unload(module_); }

cuda::Function Kernels::find(const char* name) const {
  cuda::Function found = nullptr;
  cuda::Code code = device_.driver().module_function(&found, module_, name);
  device_.driver().check(code, (std::string("module_function of ") + name).c_str());
  return found;
}

Marks::Marks(const Device& device, size_t count) : device_(device), events_(count) {
  for (cuda::Event& event : events_) BENCH_CUDA(device.driver(), event_create, &event, 0);
}

Marks::~Marks() {
  for (cuda::Event event : events_) device_.driver().event_destroy(event);
}

void Marks::set() {
  BENCH_CUDA(device_.driver(), event_record, events_.at(next_++), device_.stream());
}

double Marks::between(size_t from, size_t to) const {
  float ms = 0;
  BENCH_CUDA(device_.driver(), event_elapsed, &ms, events_.at(from), events_.at(to));
  return static_cast<double>(ms) * 1e3;
}

Work::Work(const Device& device, Body body, size_t times, bool as_graph)
    : device_(device), body_(std::move(body)), times_(times) {
  if (as_graph) capture();
}

Work::~Work() {
  if (ready_) device_.driver().graph_exec_destroy(ready_);
  if (graph_) device_.driver().graph_destroy(graph_);
}

void Work::capture() {
  const GpuDriver& driver = device_.driver();
  BENCH_CUDA(driver, capture_begin, device_.stream(), cuda::kCaptureThreadLocal);
  try {
    for (size_t i = 0; i < times_; ++i) body_();
  } catch (...) {
    driver.capture_end(device_.stream(), &graph_);
    if (graph_) driver.graph_destroy(graph_);
    throw;
  }
  BENCH_CUDA(driver, capture_end, device_.stream(), &graph_);
  BENCH_CUDA(driver, graph_instantiate, &ready_, graph_, 0);
}

void Work::enqueue() const {
  if (ready_) {
    BENCH_CUDA(device_.driver(), graph_launch, ready_, device_.stream());
    return;
  }
  for (size_t i = 0; i < times_; ++i) body_();
}

std::vector<double> time_on_stream(const StreamRow& row) {
  const Work::Body& checked = row.checked ? row.checked : row.round;
  auto verify = [&](auto enqueue) {
    for (uint64_t i = 0; i < row.whole; ++i) {
      row.begin(/*last=*/false);
      enqueue();
      row.end();
    }
  };
  // Before any capture: the first operations may set up resources that later ones use.
  verify(checked);
  const Work once(row.device, checked, 1, row.graph);
  const Work work(row.device, row.round, row.each, row.graph);
  Marks marks(row.device, row.samples + 2);
  verify([&] { once.enqueue(); });
  row.begin(/*last=*/true);
  for (size_t i = 0; i < parts(row.warmup, row.each); ++i) work.enqueue();
  marks.set();
  for (size_t i = 0; i < row.samples; ++i) {
    work.enqueue();
    marks.set();
  }
  if (row.confirm) row.confirm();
  marks.set();
  row.end();
  std::vector<double> times;
  for (size_t i = 0; i < row.samples; ++i) times.push_back(marks.between(i, i + 1));
  times.push_back(marks.between(0, row.samples + 1));
  return times;
}

Outcome stream_row(Wire& wire, const Device& device, const Spec& spec) {
  constexpr size_t kQuick = 4 << 20;
  Outcome outcome;
  const bool first = wire.link().first();
  Payload* out = wire.out();
  Payload* in = wire.in();
  uint64_t pass = 0;
  auto round = [&] {
    if (in && !first) wire.irecv(0);
    if (out) wire.isend(0);
    if (in && first) wire.irecv(0);
  };
  auto begin = [&](bool last) {
    if (in) in->clear(pass, last);
    if (out) out->lay_out(pass, last);
    ++pass;
    wire.link().sync();
  };
  auto end = [&] {
    device.synchronize();
    if (in) outcome.wrong += in->check_all(1, &outcome.checked);
  };
  const bool one_way = spec.op == Op::kBandwidth || spec.op == Op::kBatch;
  const size_t each = one_way ? parts(spec.iterations, kSamples)
                              : std::min(kRounds, std::max<size_t>(spec.iterations, 1));
  const size_t samples = parts(spec.iterations, each);
  StreamRow row{device,
                round,
                begin,
                end,
                (out ? out : in)->bytes() <= kQuick ? uint64_t{8} : uint64_t{1},
                spec.warmup,
                each,
                samples,
                spec.graph};
  if (one_way) row.confirm = [&] { wire.confirm_on_stream(); };
  const std::vector<double> times = time_on_stream(row);
  if (spec.mode == Mode::kGetStream) {
    const Work once(device, round, 1, spec.graph);
    for (uint64_t i = 0; i < row.whole; ++i) {
      begin(/*last=*/false);
      once.enqueue();
      end();
    }
  } else {
    CheckedRounds(wire, device, spec, each, pass).run(round, samples, &outcome);
  }
  const double operations = static_cast<double>(each) * (spec.op == Op::kLatency ? 2 : 1);
  const size_t blocks = spec.op == Op::kBatch ? spec.blocks : 1;
  const double bytes = operations * static_cast<double>(blocks * spec.size);
  // Every rank reports its time: an exchange ends when the slowest rank has finished.
  const bool timed = first || spec.op == Op::kPatterns;
  for (size_t i = 0; i < samples && timed; ++i) outcome.add(times[i], bytes, 1 / operations);
  if (first && one_way) outcome.seconds = times.back() / 1e6;
  outcome.path = wire.path();
  wire.link().sync();
  return outcome;
}

KernelPayload kernel_payload(const Spec& spec, SlotWire& wire, const void* findings) {
  KernelPayload payload{};
  if (wire.out()) payload.out = address_of(wire.out()->place(0));
  if (wire.in()) payload.in = address_of(wire.in()->place(0));
  payload.bytes = spec.size;
  payload.findings = address_of(findings);
  payload.side = static_cast<uint32_t>(wire.link().number());
  return payload;
}

Outcome time_kernels(const Spec& spec, const KernelPair& pair) {
  Outcome outcome;
  const uint32_t checked_rounds = spec.size <= 64 << 10 ? 50 : spec.size <= 64 << 20 ? 4 : 1;
  const auto rounds = static_cast<uint32_t>(parts(spec.iterations, kSamples));
  void* findings = reinterpret_cast<void*>(pair.findings);
  auto begin = [&](bool) {
    BENCH_CUDA(pair.device.driver(), memset8_async, pair.findings, 0, sizeof(Findings),
               pair.device.stream());
    pair.device.synchronize();
    pair.link.sync();
  };
  auto end = [&] {
    pair.device.synchronize();
    Findings found{};
    pair.device.copy(&found, findings, sizeof(found));
    outcome.wrong += found.wrong;
    if (found.fault == 0) return;
    throw GpuError("a kernel's lane failed with fault " + std::to_string(found.fault) +
                   " (onehop/lane.h: oh_lane_fault)");
  };
  // Load the kernels with an empty launch: a kernel's first launch waits for running kernels,
  // possibly the other side's.
  begin(false);
  pair.launch(true, 0, false);
  pair.launch(false, 0, false);
  end();
  const std::vector<double> times = time_on_stream(
      {pair.device, [&] { pair.launch(false, rounds, false); }, begin, end, /*whole=*/1,
       /*warmup=*/1, /*each=*/1, kSamples, /*graph=*/false,
       [&] { pair.launch(true, checked_rounds, false); }});
  begin(/*last=*/true);
  const size_t most = std::max<size_t>(1, kCheckedByKernels / std::max<size_t>(1, spec.size));
  pair.launch(true, static_cast<uint32_t>(std::min<size_t>(rounds * kSamples, most)), spec.corrupt);
  end();
  const double messages = (spec.op == Op::kLatency ? 2.0 : 1.0) * rounds;
  for (size_t i = 0; i < kSamples && pair.link.first(); ++i) {
    outcome.add(times[i], messages * static_cast<double>(spec.size), 1 / messages);
  }
  pair.link.sync();
  return outcome;
}

}  // namespace bench
