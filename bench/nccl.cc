// SPDX-License-Identifier: Apache-2.0
#include "yardsticks.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "clock.h"
#include "loops.h"
#include "patterns.h"
#include "streams.h"

namespace bench {
namespace {

constexpr int kUint8 = 1;  // ncclUint8

}  // namespace

// ncclUniqueId of nccl.h.
struct NcclId {
  char internal[128];
};

struct NcclLibrary {
  // Opens the first of `libraries` that loads. GpuError: none loads, or `registered` is set and
  // NCCL is older than 2.19, which cannot register memory.
  NcclLibrary(const std::vector<std::string>& libraries, bool registered);
  void check(int code, const char* call) const;
  std::string version() const;

  int (*get_version)(int*);
  const char* (*get_error)(int);
  int (*get_unique_id)(NcclId*);
  int (*init_rank)(void**, int, NcclId, int);
  int (*send)(const void*, size_t, int, int, void*, cuda::Stream);
  int (*recv)(void*, size_t, int, int, void*, cuda::Stream);
  int (*group_start)();
  int (*group_end)();
  int (*destroy)(void*);
  // For registered memory.
  int (*allocate)(void**, size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*enroll)(void*, void*, size_t, void**) = nullptr;
  int (*withdraw)(void*, void*) = nullptr;
};

NcclLibrary::NcclLibrary(const std::vector<std::string>& libraries, bool registered) {
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
  if (!registered) return;
  find("ncclMemAlloc", &allocate);
  find("ncclMemFree", &free);
  find("ncclCommRegister", &enroll);
  find("ncclCommDeregister", &withdraw);
}

void NcclLibrary::check(int code, const char* call) const {
  if (code != 0) throw GpuError(std::string(call) + " failed: " + get_error(code));
}

std::string NcclLibrary::version() const {
  int version = 0;
  check(get_version(&version), "ncclGetVersion");
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

namespace {

// Messages of one row.
class NcclWire final : public SlotWire {
 public:
  NcclWire(Nccl& nccl, Link& link, const Spec& spec)
      : SlotWire(link),
        nccl_(nccl),
        spec_(spec),
        other_(static_cast<uint32_t>(1 - link_.number())),
        note_(nccl.device(), Memory::kCuda, 1) {
    give_and_take(spec, [&] {
      const size_t size = spec.size * spec.window;
      return std::make_unique<GpuBuffer>(nccl.device(), nccl.block(spec, size + spec.offset), size,
                                         spec.offset);
    });
    // Both directions at once form one group; otherwise each operation is on its own.
    grouped_ = spec.both;
  }

  void irecv(uint64_t i) override {
    if (grouped_) nccl_.begin_group();
    nccl_.recv(to_->place(i), spec_.size, other_);
    if (!grouped_) begun(i);
  }
  void isend(uint64_t i) override {
    nccl_.send(from_->place(i), spec_.size, other_);
    if (grouped_) nccl_.end_group();
    begun(i);
  }
  void sent(uint64_t i) override { ended(i); }
  void received(uint64_t i) override { ended(i); }
  // The blocking calls of the latency loop: one message in flight.
  void send(uint64_t i) override {
    isend(i);
    nccl_.device().synchronize();
  }
  void recv(uint64_t i) override {
    irecv(i);
    nccl_.device().synchronize();
  }
  void confirm_on_stream() override {
    link_.first() ? nccl_.recv(note_.data(), 1, other_) : nccl_.send(note_.data(), 1, other_);
  }

 private:
  void begun(uint64_t i) {
    if (i == 0) ended_ = 0;
    begun_ = i + 1;
  }
  // One synchronization ends all operations in flight.
  void ended(uint64_t i) {
    if (i < ended_) return;
    nccl_.device().synchronize();
    ended_ = begun_;
  }

  Nccl& nccl_;
  const Spec spec_;
  uint32_t other_;
  GpuBlock note_;  // for confirmations
  bool grouped_ = false;
  uint64_t begun_ = 0;
  uint64_t ended_ = 0;
};

// The parts of a pattern by ncclSend and ncclRecv in one group. NCCL needs the sizes on the host,
// so a dispatch transfers whole parts.
class NcclPatterns final : public PatternWire {
 public:
  NcclPatterns(Nccl& nccl, Link& link, uint32_t ranks, const Spec& spec)
      : PatternWire(link, ranks, nccl.device(), spec, /*padded=*/spec.mode == Mode::kDispatch,
                    [&](size_t size) { return nccl.block(spec, size); }),
        nccl_(nccl) {}

  void isend(uint64_t) override {
    nccl_.begin_group();
    for (uint32_t other = 0; other < ranks_; ++other) {
      if (sends(spec_.mode, ranks_, rank_, other)) {
        nccl_.send(mine_->part(other), moved(rank_, other), other);
      }
      if (sends(spec_.mode, ranks_, other, rank_)) {
        nccl_.recv(theirs_->part(other), moved(other, rank_), other);
      }
    }
    nccl_.end_group();
  }

 private:
  size_t moved(uint32_t from, uint32_t to) const {
    return spec_.mode == Mode::kDispatch ? spec_.size : part_of(spec_, from, to, 0);
  }

  Nccl& nccl_;
};

}  // namespace

Nccl::Nccl(Link& link, uint32_t ranks, const Device& device,
           const std::vector<std::string>& libraries, bool registered)
    : link_(link),
      ranks_(ranks),
      device_(device),
      registered_(registered),
      library_(std::make_unique<NcclLibrary>(libraries, registered)) {
  const GpuBlock byte(device, Memory::kCuda, 1);
  const auto before = static_cast<double>(device.free_memory());
  NcclId id{};
  if (link.first()) library_->check(library_->get_unique_id(&id), "ncclGetUniqueId");
  const Bytes first = link.swap({id.internal, id.internal + sizeof(id.internal)});
  if (!link.first()) std::memcpy(&id, first.data(), sizeof(id));
  Current current(device);
  auto start = Clock::now();
  void* made = nullptr;
  library_->check(library_->init_rank(&made, static_cast<int>(ranks), id, link.number()),
                  "ncclCommInitRank");
  init_ms_ = microseconds(start, Clock::now()) / 1e3;
  communicator_ = {made, [this](void* communicator) {
                     Current here(device_);
                     library_->destroy(communicator);
                   }};
  link.sync();
  start = Clock::now();
  if (link.number() == 0) send(byte.data(), 1, 1);
  if (link.number() == 1) recv(byte.data(), 1, 0);
  device.synchronize();
  first_ms_ = microseconds(start, Clock::now()) / 1e3;
  device_bytes_ = before - static_cast<double>(device.free_memory());
}

// Defined here, where NcclLibrary is complete.
Nccl::~Nccl() = default;

std::string Nccl::version() const { return library_->version(); }

std::unique_ptr<GpuBlock> Nccl::block(const Spec& spec, size_t size) {
  size = std::max<size_t>(size, 1);
  if (!registered_) return std::make_unique<GpuBlock>(device_, spec.memory, size);
  Current current(device_);
  void* data = nullptr;
  library_->check(library_->allocate(&data, size), "ncclMemAlloc");
  std::shared_ptr<void> memory(data, [this](void* given) { library_->free(given); });
  void* handle = nullptr;
  library_->check(library_->enroll(communicator_.get(), data, size, &handle), "ncclCommRegister");
  std::shared_ptr<void> enrolled(
      data, [this, memory, handle](void*) { library_->withdraw(communicator_.get(), handle); });
  return std::make_unique<GpuBlock>(device_, std::move(enrolled), size);
}

void Nccl::send(const void* data, size_t size, uint32_t to) {
  const int rank = static_cast<int>(to);
  library_->check(library_->send(data, size, kUint8, rank, communicator_.get(), device_.stream()),
                  "ncclSend");
}

void Nccl::recv(void* data, size_t size, uint32_t from) {
  const int rank = static_cast<int>(from);
  library_->check(library_->recv(data, size, kUint8, rank, communicator_.get(), device_.stream()),
                  "ncclRecv");
}

void Nccl::begin_group() { library_->check(library_->group_start(), "ncclGroupStart"); }
void Nccl::end_group() { library_->check(library_->group_end(), "ncclGroupEnd"); }

Outcome Nccl::run(const Spec& spec) {
  Current current(device_);
  if (spec.op == Op::kPatterns) {
    NcclPatterns wire(*this, link_, ranks_, spec);
    return stream_row(wire, device_, spec);
  }
  NcclWire wire(*this, link_, spec);
  return is_ordered(spec.mode) ? stream_row(wire, device_, spec) : bench::run(wire, spec);
}

}  // namespace bench
