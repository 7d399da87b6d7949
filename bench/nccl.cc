// SPDX-License-Identifier: Apache-2.0
#include "nccl.h"

#include <dlfcn.h>

#include <cstring>

#include "clock.h"
#include "streams.h"

namespace bench {
namespace {

constexpr int kUint8 = 1;  // ncclUint8

}  // namespace

NcclLibrary::NcclLibrary(const std::vector<std::string>& libraries) {
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

void NcclLibrary::check(int code, const char* call) const {
  if (code != 0) throw GpuError(std::string(call) + " failed: " + get_error(code));
}

std::string NcclLibrary::version() const {
  int version = 0;
  check(get_version(&version), "ncclGetVersion");
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

NcclCommunicator::NcclCommunicator(const std::vector<std::string>& libraries, const Device& device,
                                   uint32_t rank, uint32_t ranks,
                                   const std::function<void(NcclId*)>& share)
    : library_(libraries), device_(device) {
  NcclId id{};
  if (rank == 0) library_.check(library_.get_unique_id(&id), "ncclGetUniqueId");
  share(&id);
  Current current(device);
  const auto start = Clock::now();
  const int code =
      library_.init_rank(&communicator_, static_cast<int>(ranks), id, static_cast<int>(rank));
  library_.check(code, "ncclCommInitRank");
  init_ms_ = microseconds(start, Clock::now()) / 1e3;
}

NcclCommunicator::~NcclCommunicator() {
  Current current(device_);
  if (communicator_) library_.destroy(communicator_);
}

void NcclCommunicator::send(const void* data, size_t size, uint32_t to) {
  const int rank = static_cast<int>(to);
  library_.check(library_.send(data, size, kUint8, rank, communicator_, device_.stream()),
                 "ncclSend");
}

void NcclCommunicator::recv(void* data, size_t size, uint32_t from) {
  const int rank = static_cast<int>(from);
  library_.check(library_.recv(data, size, kUint8, rank, communicator_, device_.stream()),
                 "ncclRecv");
}

void NcclCommunicator::begin_group() { library_.check(library_.group_start(), "ncclGroupStart"); }
void NcclCommunicator::end_group() { library_.check(library_.group_end(), "ncclGroupEnd"); }

// Messages of one row.
class NcclWire : public SlotWire {
 public:
  NcclWire(Nccl& nccl, const Spec& spec)
      : SlotWire(nccl.meeting_),
        nccl_(nccl),
        spec_(spec),
        messages_(*nccl.communicator_),
        other_(static_cast<uint32_t>(1 - link_.number())),
        note_(nccl.device_, Memory::kCuda, 1) {
    give_and_take(spec, [&] {
      return std::make_unique<GpuBuffer>(nccl.device_, spec, spec.size * spec.window);
    });
    // One group for both ways at once; else each operation is one of its own.
    grouped_ = spec.both;
  }

  void irecv(uint64_t i) override {
    if (grouped_) messages_.begin_group();
    messages_.recv(to_->place(i), spec_.size, other_);
    if (!grouped_) begun(i);
  }
  void isend(uint64_t i) override {
    messages_.send(from_->place(i), spec_.size, other_);
    if (grouped_) messages_.end_group();
    begun(i);
  }
  void sent(uint64_t i) override { ended(i); }
  void received(uint64_t i) override { ended(i); }
  // Blocking calls of latency: one message is under way.
  void send(uint64_t i) override {
    isend(i);
    nccl_.device_.synchronize();
  }
  void recv(uint64_t i) override {
    irecv(i);
    nccl_.device_.synchronize();
  }
  void confirm_on_stream() override {
    link_.first() ? messages_.recv(note_.data(), 1, other_)
                  : messages_.send(note_.data(), 1, other_);
  }

 private:
  void begun(uint64_t i) {
    if (i == 0) ended_ = 0;
    begun_ = i + 1;
  }
  // One wait for all that is under way.
  void ended(uint64_t i) {
    if (i < ended_) return;
    nccl_.device_.synchronize();
    ended_ = begun_;
  }

  Nccl& nccl_;
  const Spec spec_;
  NcclCommunicator& messages_;
  uint32_t other_;
  GpuBlock note_;  // of a confirmation
  bool grouped_ = false;
  uint64_t begun_ = 0;
  uint64_t ended_ = 0;
};

Nccl::Nccl(Meeting& meeting, const Device& device, const std::vector<std::string>& libraries)
    : meeting_(meeting), device_(device) {
  const GpuBlock byte(device, Memory::kCuda, 1);
  const auto before = static_cast<double>(device.free_memory());
  const auto number = static_cast<uint32_t>(meeting.number());
  communicator_.emplace(libraries, device, number, 2, [&](NcclId* id) {
    const Bytes first = meeting.swap({id->internal, id->internal + sizeof(id->internal)});
    if (number != 0) std::memcpy(id, first.data(), sizeof(*id));
  });
  meeting.sync();
  Current current(device);
  const auto start = Clock::now();
  number == 0 ? communicator_->send(byte.data(), 1, 1) : communicator_->recv(byte.data(), 1, 0);
  device.synchronize();
  first_ms_ = microseconds(start, Clock::now()) / 1e3;
  device_bytes_ = before - static_cast<double>(device.free_memory());
}

Outcome Nccl::run(const Spec& spec) {
  Current current(device_);
  NcclWire wire(*this, spec);
  return is_ordered(spec.mode) ? stream_row(wire, device_, spec) : bench::run(wire, spec);
}

}  // namespace bench
