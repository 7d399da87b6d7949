// SPDX-License-Identifier: Apache-2.0
#include "side.h"

#include <algorithm>

#include "clock.h"
#include "loops.h"

namespace bench {
namespace {

constexpr size_t kControlSize = 4096;
constexpr uint32_t kSlot = 0;

class SharedBuffer : public Buffer {
 public:
  explicit SharedBuffer(size_t size)
      : SharedBuffer(size, std::make_shared<onehop::SharedMemory>(std::max<size_t>(size, 1))) {}

 private:
  SharedBuffer(size_t size, const std::shared_ptr<onehop::SharedMemory>& memory)
      : Buffer(size, memory, static_cast<uint8_t*>(memory->data())) {}
};

// Operations of a row in flight: one per slot.
class Requests {
 public:
  explicit Requests(size_t window) : all_(window) {}
  void put(uint64_t slot, onehop::Request request) { all_[slot].emplace(std::move(request)); }
  oh_path wait(uint64_t slot) { return all_[slot]->wait().path; }

 private:
  std::vector<std::optional<onehop::Request>> all_;
};

// What all wires over a side have.
class SideWire : public SlotWire {
 public:
  SideWire(Side& side, const Spec& spec) : SlotWire(side), side_(side), spec_(spec) {
    give_and_take(spec, [&] { return side.make_buffer(spec, spec.size * spec.window); });
  }
  std::string path() const override { return oh_path_name(path_); }

 protected:
  onehop::Peer& peer() { return side_.peer(); }

  Side& side_;
  const Spec spec_;
  oh_path path_ = OH_PATH_NONE;
};

// Such a wire with memory that the other side has attached.
class AttachedWire : public SideWire {
 public:
  AttachedWire(Side& side, const Spec& spec)
      : SideWire(side, spec),
        region_(side.endpoint().register_memory(memory().place(), memory().size())),
        remote_(side.swap_region(region_)) {}

 protected:
  onehop::Region region_;
  onehop::RemoteRegion remote_;
};

class Messages : public SideWire {
 public:
  Messages(Side& side, const Spec& spec)
      : SideWire(side, spec), sends_(spec.window), receives_(spec.window) {}

  void isend(uint64_t i) final {
    sends_.put(from_->slot(i), peer().isend(from_->place(i), spec_.size, kDataTag));
  }
  void sent(uint64_t i) final { sends_.wait(from_->slot(i)); }
  void send(uint64_t i) override { peer().send(from_->place(i), spec_.size, kDataTag); }
  void irecv(uint64_t i) final {
    receives_.put(to_->slot(i), peer().irecv(to_->place(i), spec_.size, kDataTag));
  }
  void received(uint64_t i) final { path_ = receives_.wait(to_->slot(i)); }
  void recv(uint64_t i) final { path_ = peer().recv(to_->place(i), spec_.size, kDataTag).path; }

 private:
  Requests sends_;
  Requests receives_;
};

// Messages whose first bytes are written by work on a GPU, sent behind its event.
class ProducedMessages final : public Messages {
 public:
  ProducedMessages(Side& side, const Spec& spec)
      : Messages(side, spec), producer_(side.device(), from_->memory()) {}
  void prepare(uint64_t i) override { producer_.produce(i, side_.first()); }
  void send(uint64_t i) override {
    peer()
        .isend(from_->place(i), spec_.size, kDataTag, onehop::After::event(producer_.event()))
        .wait();
  }

 private:
  Producer producer_;
};

// A put and a signal behind it, as a message.
class SignalledPuts final : public AttachedWire {
 public:
  using AttachedWire::AttachedWire;
  void send(uint64_t i) override {
    onehop::Request put = peer().put(from_->place(i), remote_, 0, spec_.size);
    peer().signal(kSlot);
    path_ = put.wait().path;
  }
  void recv(uint64_t) override { peer().wait_signal(kSlot); }
};

// Puts into the other side's memory, or gets from it.
class OneSided final : public AttachedWire {
 public:
  OneSided(Side& side, const Spec& spec) : AttachedWire(side, spec), requests_(spec.window) {}
  void isend(uint64_t i) override {
    requests_.put(from_->slot(i),
                  peer().put(from_->place(i), remote_, from_->offset(i), spec_.size));
  }
  void sent(uint64_t i) override { path_ = requests_.wait(from_->slot(i)); }
  void send(uint64_t i) override {
    path_ = peer().put(from_->place(i), remote_, from_->offset(i), spec_.size).wait().path;
  }
  void irecv(uint64_t i) override {
    requests_.put(to_->slot(i), peer().get(to_->place(i), remote_, to_->offset(i), spec_.size));
  }
  void received(uint64_t i) override { path_ = requests_.wait(to_->slot(i)); }
  void recv(uint64_t i) override {
    path_ = peer().get(to_->place(i), remote_, to_->offset(i), spec_.size).wait().path;
  }

 private:
  Requests requests_;
};

template <typename W>
Outcome row_by(Side& side, const Spec& spec) {
  W wire(side, spec);
  return run_by(wire, spec);
}

}  // namespace

Side::Side(int number, const std::string& device, std::optional<size_t> max_inline)
    : number_(number), name_(device), asked_inline_(max_inline) {
  // The context is not what is timed: it takes the driver a fifth of a second.
  if (!name_.empty()) device_.emplace(name_);
  auto start = Clock::now();
  endpoint_ = std::make_unique<onehop::Endpoint>(make_endpoint());
  created_us_ = microseconds(start, Clock::now());
}

const Device& Side::device() const {
  if (!device_) throw GpuError("memory of a GPU needs a device");
  return *device_;
}

onehop::Endpoint Side::make_endpoint() const {
  auto options = onehop::detail::sized<oh_endpoint_options>();
  if (!name_.empty()) options.device = name_.c_str();
  options.set_max_inline = asked_inline_.has_value();
  options.max_inline = asked_inline_.value_or(0);
  return onehop::Endpoint(&options);
}

std::unique_ptr<Buffer> Side::make_buffer(const Spec& spec, size_t size) const {
  if (spec.memory != Memory::kHost) return std::make_unique<GpuBuffer>(device(), spec, size);
  return make_host_buffer(spec, size);
}

std::unique_ptr<Buffer> make_host_buffer(const Spec& spec, size_t size) {
  if (spec.shared) return std::make_unique<SharedBuffer>(size);
  return std::make_unique<Buffer>(size);
}

void Side::connect(const onehop::Bytes& address) {
  other_address_ = address;
  peer_ = std::make_unique<onehop::Peer>(endpoint_->connect(address));
}

void Side::accept() { peer_ = std::make_unique<onehop::Peer>(endpoint_->accept()); }

void Side::close() {
  peer_.reset();
  endpoint_.reset();
}

Bytes Side::swap(const Bytes& bytes) {
  Bytes answer(kControlSize);
  onehop::Request receive = peer_->irecv(answer.data(), answer.size(), kControlTag);
  peer_->send(bytes.data(), bytes.size(), kControlTag);
  answer.resize(receive.wait().size);
  return answer;
}

onehop::RemoteRegion Side::swap_region(const onehop::Region& region) {
  return peer_->attach(swap(region.descriptor()));
}

Outcome side_row(Side& side, const Spec& spec) {
  if (spec.op == Op::kBatch) return batch(side, spec);
  if (is_ordered(spec.mode)) return ordered(side, spec);
  if (is_one_sided(spec.mode)) return row_by<OneSided>(side, spec);
  if (spec.mode == Mode::kPutSignal) return row_by<SignalledPuts>(side, spec);
  if (spec.mode == Mode::kEvent) return row_by<ProducedMessages>(side, spec);
  return row_by<Messages>(side, spec);
}

}  // namespace bench
