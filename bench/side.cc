// SPDX-License-Identifier: Apache-2.0
#include "side.h"

#include <algorithm>
#include <cstring>

#include "clock.h"
#include "loops.h"
#include "streams.h"

namespace bench {
namespace {

constexpr size_t kControlSize = 4096;
constexpr uint32_t kSlot = 0;
constexpr uint32_t kDoneSlot = 1;

class SharedBuffer : public Buffer {
 public:
  explicit SharedBuffer(size_t size)
      : SharedBuffer(size, std::make_shared<onehop::SharedMemory>(std::max<size_t>(size, 1))) {}

 private:
  SharedBuffer(size_t size, const std::shared_ptr<onehop::SharedMemory>& memory)
      : Buffer(size, memory, static_cast<uint8_t*>(memory->data())) {}
};

// Requests of the operations in flight, one per slot.
class Requests {
 public:
  explicit Requests(size_t window) : all_(window) {}
  void put(uint64_t slot, onehop::Request request) { all_[slot].emplace(std::move(request)); }
  oh_path wait(uint64_t slot) { return all_[slot]->wait().path; }

 private:
  std::vector<std::optional<onehop::Request>> all_;
};

// Base of all wires over a side.
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

// A wire with memory that the other side has attached.
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

// Messages whose first bytes GPU work writes, sent after its event.
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

// A message made of a put followed by a signal.
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

// Puts to or gets from the other side's memory.
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

// ---- Batches: many blocks in one call; payload.h defines their layout

bool is_prepared(const Spec& spec) {
  return spec.mode == Mode::kPutPrepared || spec.mode == Mode::kGetPrepared;
}

bool in_stream(const Spec& spec) {
  return spec.mode == Mode::kPutStream || spec.mode == Mode::kGetStream;
}

// Gathers all blocks into one message, which the other side scatters: the alternative of a program
// without batches.
class Bulk {
 public:
  Bulk(Side& side, const Spec& spec)
      : side_(side), spec_(spec), message_(side.make_buffer(spec, spec.blocks * spec.size)) {}

  oh_path send(const Blocks& blocks) {
    uint8_t* at = message_->data();
    for (size_t b = 0; b < spec_.blocks; ++b) {
      std::memcpy(at + b * spec_.size, blocks.block(b), spec_.size);
    }
    onehop::Request sent = side_.peer().isend(at, message_->size(), kDataTag);
    uint8_t answer = 0;
    side_.peer().recv(&answer, sizeof(answer), kControlTag);
    return sent.wait().path;
  }
  void receive(const Blocks& blocks) {
    const uint8_t* at = message_->data();
    side_.peer().recv(message_->data(), message_->size(), kDataTag);
    for (size_t b = 0; b < spec_.blocks; ++b) {
      std::memcpy(blocks.block(b), at + b * spec_.size, spec_.size);
    }
    const uint8_t answer = 1;
    side_.peer().send(&answer, sizeof(answer), kControlTag);
  }

 private:
  Side& side_;
  const Spec& spec_;
  std::unique_ptr<Buffer> message_;
};

// Batches in the row's mode: described anew each time, prepared, stream-ordered, or as one message.
class Batches : public Wire {
 public:
  Batches(Side& side, const Spec& spec) : Wire(side), side_(side), spec_(spec) {
    blocks_ = give_or_take_blocks(spec, [&](size_t size) { return side.make_buffer(spec, size); });
    if (spec.mode == Mode::kBulk) bulk_.emplace(side, spec);
    Buffer& memory = blocks_->memory();
    region_.emplace(side.endpoint().register_memory(memory.place(), memory.size()));
    remote_.emplace(side.swap_region(*region_));
    for (size_t i = 0; i < spec.blocks && !spec.strided; ++i) {
      local_.push_back(blocks_->offset(i, false));
      away_.push_back(blocks_->offset(i, true));
    }
    if (side.first()) describe(spec.size);
    if (!in_stream(spec)) return;
    side.peer().warmup();
    stream_.emplace(side.peer().on(side.device().stream()));
  }

  // Stream-ordered.
  void isend(uint64_t) override { move_in_stream(); }
  void irecv(uint64_t) override { move_in_stream(); }
  void confirm_on_stream() override {
    side_.first() ? stream_->wait_signal(kDoneSlot) : stream_->signal(kDoneSlot);
  }

  void send(uint64_t) override { move(); }
  void recv(uint64_t) override { side_.first() ? move() : bulk_->receive(*blocks_); }
  std::string path() const override {
    if (stream_) side_.peer().check_async_error();
    return oh_path_name(stream_ ? side_.peer().stream_info().path : path_);
  }

  // Times posts of the same batch with only the first byte of each block.
  void post_first_bytes(uint64_t count, Outcome* outcome) {
    describe(1);
    for (uint64_t i = 0; i < count; ++i) {
      auto start = Clock::now();
      move();
      outcome->post_us.push_back(microseconds(start, Clock::now()));
    }
  }

 private:
  void describe(size_t length) {
    Buffer& memory = blocks_->memory();
    lengths_.assign(local_.size(), length);
    batch_ = onehop::detail::sized<oh_batch>();
    batch_.local = memory.place();
    batch_.local_size = memory.size();
    batch_.count = spec_.blocks;
    if (spec_.strided) {
      batch_.local_stride = batch_.remote_stride = Blocks::pitch(spec_);
      batch_.length = length;
    } else {
      batch_.local_offsets = local_.data();
      batch_.remote_offsets = away_.data();
      batch_.lengths = lengths_.data();
    }
    if (!is_prepared(spec_)) return;
    prepared_.emplace(puts(spec_) ? side_.peer().prepare_put(*remote_, batch_)
                                  : side_.peer().prepare_get(*remote_, batch_));
  }
  // Side 1 continues when its memory has been written or read.
  void move_in_stream() {
    if (!side_.first()) return stream_->wait_signal(kSlot);
    puts(spec_) ? stream_->put_batch(*remote_, batch_) : stream_->get_batch(*remote_, batch_);
    stream_->signal(kSlot);
  }
  void move() { path_ = bulk_ ? bulk_->send(*blocks_) : start().wait().path; }
  onehop::Request start() {
    if (prepared_) return prepared_->post();
    return puts(spec_) ? side_.peer().put_batch(*remote_, batch_)
                       : side_.peer().get_batch(*remote_, batch_);
  }

  Side& side_;
  const Spec spec_;
  Blocks* blocks_;
  std::optional<Bulk> bulk_;
  std::optional<onehop::Region> region_;
  std::optional<onehop::RemoteRegion> remote_;
  std::vector<uint64_t> local_;
  std::vector<uint64_t> away_;
  std::vector<uint64_t> lengths_;
  oh_batch batch_{};
  std::optional<onehop::PreparedBatch> prepared_;
  std::optional<onehop::OnStream> stream_;
  oh_path path_ = OH_PATH_NONE;
};

Outcome batch_row(Side& side, const Spec& spec) {
  std::optional<Current> current;
  if (in_stream(spec)) current.emplace(side.device());
  Batches wire(side, spec);
  Outcome outcome = in_stream(spec) ? stream_row(wire, side.device(), spec) : run(wire, spec);
  if (side.first() && is_prepared(spec)) {
    wire.post_first_bytes(spec.warmup + spec.iterations, &outcome);
  }
  side.sync();
  return outcome;
}

template <typename W>
Outcome row_by(Side& side, const Spec& spec) {
  W wire(side, spec);
  return run_by(wire, spec);
}

}  // namespace

Side::Side(int number, const std::string& device, std::optional<size_t> max_inline)
    : number_(number), name_(device), asked_inline_(max_inline) {
  // Create the context before the timed part: it takes the driver a fifth of a second.
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
  if (spec.op == Op::kBatch) return batch_row(side, spec);
  if (is_ordered(spec.mode)) return ordered(side, spec);
  if (is_one_sided(spec.mode)) return row_by<OneSided>(side, spec);
  if (spec.mode == Mode::kPutSignal) return row_by<SignalledPuts>(side, spec);
  if (spec.mode == Mode::kEvent) return row_by<ProducedMessages>(side, spec);
  return row_by<Messages>(side, spec);
}

}  // namespace bench
