// SPDX-License-Identifier: Apache-2.0
//
// Python bytes to and from those of the C++ API.
#pragma once

#include <nanobind/nanobind.h>

#include "buffer.h"
#include "onehop/onehop.hpp"

namespace onehop::python {

inline nb::bytes to_bytes(const Bytes& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

// What is read here and now: addresses, descriptors, notifications.
inline constexpr Wanted kByValue{
    Access::kRead,
    "where an address, a descriptor or a notification cannot be: copy it to the host first"};

// A copy of such bytes.
inline Bytes from_bytes(nb::handle object) {
  Buffer buffer(object, kByValue);
  return Bytes(buffer.data(), buffer.data() + buffer.size());
}

}  // namespace onehop::python
