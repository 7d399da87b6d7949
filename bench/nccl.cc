// SPDX-License-Identifier: Apache-2.0
#include "nccl.h"

#include <dlfcn.h>

#include <cstring>

#include "clock.h"
#include "streams.h"

namespace bench {

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

// Messages of one row.
class NcclWire : public SlotWire {
 public:
  NcclWire(Nccl& nccl, const Spec& spec)
      : SlotWire(nccl.meeting_),
        nccl_(nccl),
        spec_(spec),
        other_(1 - link_.number()),
        note_(nccl.device_, Memory::kCuda, 1) {
    auto memory = [&] {
      return std::make_unique<GpuBuffer>(nccl.device_, spec, spec.size * spec.window);
    };
    if (gives(link_, spec)) give(spec, {link_.number(), link_.first() || spec.both}, memory());
    if (takes(link_, spec)) take(spec, {other_}, memory());
    // One group for both ways at once; else each operation is one of its own.
    grouped_ = spec.both;
  }

  void irecv(uint64_t i) override {
    if (grouped_) call(nccl_.library_.group_start(), "ncclGroupStart");
    recv_bytes(to_->place(i), spec_.size);
    if (!grouped_) begun(i);
  }
  void isend(uint64_t i) override {
    send_bytes(from_->place(i), spec_.size);
    if (grouped_) call(nccl_.library_.group_end(), "ncclGroupEnd");
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
    link_.first() ? recv_bytes(note_.data(), 1) : send_bytes(note_.data(), 1);
  }

 private:
  void call(int code, const char* name) { nccl_.library_.check(code, name); }
  void send_bytes(const void* data, size_t size) {
    call(nccl_.library_.send(data, size, kNcclUint8, other_, nccl_.communicator_,
                             nccl_.device_.stream()),
         "ncclSend");
  }
  void recv_bytes(void* data, size_t size) {
    call(nccl_.library_.recv(data, size, kNcclUint8, other_, nccl_.communicator_,
                             nccl_.device_.stream()),
         "ncclRecv");
  }
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
  int other_;
  GpuBlock note_;  // of a confirmation
  bool grouped_ = false;
  uint64_t begun_ = 0;
  uint64_t ended_ = 0;
};

Nccl::Nccl(Meeting& meeting, const Device& device, const std::vector<std::string>& libraries)
    : meeting_(meeting), device_(device), library_(libraries) {
  NcclId id{};
  if (meeting.first()) library_.check(library_.get_unique_id(&id), "ncclGetUniqueId");
  const Bytes theirs = meeting.swap({id.internal, id.internal + sizeof(id.internal)});
  if (!meeting.first()) std::memcpy(&id, theirs.data(), sizeof(id));
  const GpuBlock byte(device, Memory::kCuda, 1);
  const auto before = static_cast<double>(device.free_memory());
  Current current(device);
  auto start = Clock::now();
  library_.check(library_.init_rank(&communicator_, 2, id, meeting.number()), "ncclCommInitRank");
  init_ms_ = microseconds(start, Clock::now()) / 1e3;
  meeting.sync();
  start = Clock::now();
  const int code =
      meeting.first()
          ? library_.send(byte.data(), 1, kNcclUint8, 1, communicator_, device.stream())
          : library_.recv(byte.data(), 1, kNcclUint8, 0, communicator_, device.stream());
  library_.check(code, "the first message");
  device.synchronize();
  first_ms_ = microseconds(start, Clock::now()) / 1e3;
  device_bytes_ = before - static_cast<double>(device.free_memory());
}

Nccl::~Nccl() {
  Current current(device_);
  if (communicator_) library_.destroy(communicator_);
}

Outcome Nccl::run(const Spec& spec) {
  Current current(device_);
  NcclWire wire(*this, spec);
  return is_ordered(spec.mode) ? stream_row(wire, device_, spec) : bench::run(wire, spec);
}

}  // namespace bench
