// SPDX-License-Identifier: Apache-2.0
//
// What the parts of onehop._bench are bound with: arrays, bytes that the sides give each other, and
// the parts themselves.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "onehop/onehop.hpp"

namespace bench {

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: every binding names its arguments

using Array = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NoGil = nb::call_guard<nb::gil_scoped_release>;

// Binds a method that gives the bytes by which the other side finds this one.
template <typename T, typename Method>
auto giving(Method method) {
  return [method](T& self) {
    onehop::Bytes bytes = (self.*method)();
    return nb::bytes(bytes.data(), bytes.size());
  };
}

// Binds a method that takes what the other side gave, and waits for it.
template <typename T>
auto taking(void (T::*method)(const onehop::Bytes&)) {
  return [method](T& self, const nb::bytes& given) {
    const auto* at = static_cast<const uint8_t*>(given.data());
    onehop::Bytes bytes(at, at + given.size());
    nb::gil_scoped_release release;
    (self.*method)(bytes);
  };
}

// The parts that are about GPUs.
void bind_gpu(nb::module_& module);
void bind_patterns(nb::module_& module);

}  // namespace bench
