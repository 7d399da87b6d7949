// SPDX-License-Identifier: Apache-2.0
#include "side.h"

#include <algorithm>

#include "payload.h"

namespace bench {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kControlSize = 4096;

}  // namespace

Buffer::Buffer(size_t size, bool shared) : size_(size) {
  size_t pages = std::max<size_t>((size + kPage - 1) / kPage, 1) * kPage;
  if (shared) {
    shared_ = std::make_unique<onehop::SharedMemory>(pages);
    data_ = shared_->data();
  } else {
    own_.reset(static_cast<uint8_t*>(std::aligned_alloc(kPage, pages)));
    if (!own_) throw std::bad_alloc();
    data_ = own_.get();
  }
  poison(data_, pages);
}

Buffer::Buffer(const Side& side, const Spec& spec, size_t size) : Buffer(size, spec.shared) {
  if (spec.memory == Memory::kHost) return;
  device_ = &side.device();
  offset_ = spec.offset;
  block_ = std::make_unique<GpuBlock>(*device_, spec.memory, std::max<size_t>(size, 1) + offset_);
  publish();
}

void Buffer::publish() {
  if (block_) device_->copy(place(), data_, size_);
}

void Buffer::fetch() {
  if (block_) device_->copy(data_, place(), size_);
}

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

void Side::connect(const onehop::Bytes& address) {
  other_address_ = address;
  peer_ = std::make_unique<onehop::Peer>(endpoint_->connect(address));
}

void Side::accept() { peer_ = std::make_unique<onehop::Peer>(endpoint_->accept()); }

void Side::close() {
  peer_.reset();
  endpoint_.reset();
}

void Side::sync() { swap({}); }

onehop::Bytes Side::swap(const onehop::Bytes& bytes) {
  onehop::Bytes answer(kControlSize);
  onehop::Request receive = peer_->irecv(answer.data(), answer.size(), kControlTag);
  peer_->send(bytes.data(), bytes.size(), kControlTag);
  answer.resize(receive.wait().size);
  return answer;
}

onehop::RemoteRegion Side::swap_region(const onehop::Region& region) {
  return peer_->attach(swap(region.descriptor()));
}

uint64_t seed_of(const Spec& spec, int number, uint64_t phase) {
  return (phase * 2 + static_cast<uint64_t>(number)) * 0x100000001b3ULL + spec.size;
}

}  // namespace bench
