// SPDX-License-Identifier: Apache-2.0
//
// Conversion between Python bytes and those of the C++ API.
#pragma once

#include <nanobind/nanobind.h>

#include "onehop/onehop.hpp"
#include "region.h"

namespace onehop::python {

inline nb::bytes to_bytes(const Bytes& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

// A buffer or region that is read immediately: an address, a descriptor or a notification.
class ByValue {
 public:
  explicit ByValue(nb::handle object) {
    constexpr const char* kNoDevice =
        "where an address, a descriptor or a notification cannot be: copy it to the host first";
    const PyRegion* region = as_region(object);
    if (!region) {
      buffer_.acquire(object, {Access::kRead, kNoDevice});
      data_ = buffer_.data();
      size_ = buffer_.size();
      return;
    }
    if (region->memory->buffer->memory() == Memory::kDevice) refuse_device(object, kNoDevice);
    region_ = region->memory;
    data_ = region->data();
    size_ = region->size;
  }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Buffer buffer_;
  std::shared_ptr<RegionMemory> region_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Copies the bytes of such an argument.
inline Bytes from_bytes(nb::handle object) {
  ByValue bytes(object);
  return Bytes(bytes.data(), bytes.data() + bytes.size());
}

}  // namespace onehop::python
