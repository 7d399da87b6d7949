// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "conformance/device_memory.h"
#include "conformance/sides.h"

// Sanitizers check each byte access, which took a quarter of the tests' time. Only for functions
// that access memory private to their caller: memory that other threads or processes can access is
// copied first.
#define UNSANITIZED __attribute__((no_sanitize("address", "thread", "undefined")))

namespace conformance {
namespace {

UNSANITIZED uint8_t byte_of(uint64_t seed, size_t position) {
  uint64_t mixed = (seed + 1) * 0x9e3779b97f4a7c15ULL + position * 0xc2b2ae3d27d4eb4fULL;
  return static_cast<uint8_t>(mixed >> 56);
}

UNSANITIZED void write_bytes(uint8_t* to, uint64_t seed, size_t size) {
  for (size_t i = 0; i < size; ++i) to[i] = byte_of(seed, i);
}

// Returns the position of the first byte that differs from the seed's, or `size`.
UNSANITIZED size_t first_wrong(const uint8_t* bytes, uint64_t seed, size_t size) {
  size_t i = 0;
  while (i < size && bytes[i] == byte_of(seed, i)) ++i;
  return i;
}

UNSANITIZED size_t first_unlike(const uint8_t* bytes, uint8_t byte, size_t from, size_t size) {
  while (from < size && bytes[from] == byte) ++from;
  return from;
}

constexpr uint8_t kPoison = 0xee;

}  // namespace

Buffer::Buffer(size_t size, MemoryKind kind) : kind_(kind), size_(size) {
  switch (kind) {
    case MemoryKind::kPrivate:
      own_.resize(size + 1);
      data_ = own_.data();
      break;
    case MemoryKind::kShared:
      shared_.emplace(size);
      data_ = shared_->data();
      break;
    default:
      data_ = static_cast<uint8_t*>(allocate(kind, size));
  }
}

Buffer::~Buffer() {
  if (data_ && kind_ > MemoryKind::kShared) release(kind_, data_, size_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : kind_(other.kind_),
      shared_(std::move(other.shared_)),
      own_(std::move(other.own_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(shared_, other.shared_);
  std::swap(own_, other.own_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void Buffer::set(const onehop::Bytes& bytes) {
  if (on_device(kind_)) {
    write_device(data_, bytes.data(), bytes.size());
  } else {
    std::copy(bytes.begin(), bytes.end(), data_);
  }
}

onehop::Bytes Buffer::bytes() const {
  onehop::Bytes bytes(size_);
  if (on_device(kind_)) {
    read_device(bytes.data(), data_, size_);
  } else {
    std::copy(data_, data_ + size_, bytes.data());
  }
  return bytes;
}

uint8_t Buffer::at(size_t index) const {
  if (!on_device(kind_)) return data_[index];
  uint8_t byte;
  read_device(&byte, data_ + index, 1);
  return byte;
}

onehop::Bytes pattern(uint64_t seed, size_t size) {
  onehop::Bytes bytes(size);
  write_bytes(bytes.data(), seed, size);
  return bytes;
}

void Buffer::fill(uint64_t seed) { set(pattern(seed, size_)); }

void Buffer::poison() { set(onehop::Bytes(size_, kPoison)); }

::testing::AssertionResult Buffer::holds(uint64_t seed, size_t size) const {
  if (size > size_) return ::testing::AssertionFailure() << size << " bytes of " << size_;
  onehop::Bytes bytes = this->bytes();
  const size_t i = first_wrong(bytes.data(), seed, size);
  if (i == size) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "byte " << i << " of " << size << " is " << int{bytes[i]}
                                       << ", expected " << int{byte_of(seed, i)};
}

::testing::AssertionResult Buffer::is_poisoned(size_t from) const {
  onehop::Bytes bytes = this->bytes();
  const size_t i = first_unlike(bytes.data(), kPoison, from, size_);
  if (i >= size_) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "byte " << i << " is " << int{bytes[i]};
}

}  // namespace conformance
