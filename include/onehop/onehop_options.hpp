// SPDX-License-Identifier: Apache-2.0
//
// Values and options of onehop.hpp, and helpers that its classes share. Include onehop.hpp.
#ifndef ONEHOP_ONEHOP_OPTIONS_HPP_
#define ONEHOP_ONEHOP_OPTIONS_HPP_

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "onehop/onehop.h"
#include "onehop/onehop_error.hpp"

namespace onehop {

using Timeout = std::chrono::nanoseconds;
inline constexpr Timeout kDefaultTimeout{OH_TIMEOUT_DEFAULT};
inline constexpr Timeout kNever{OH_TIMEOUT_NEVER};
inline constexpr uint64_t kAnyTag = OH_ANY_TAG;
using Bytes = std::vector<std::uint8_t>;

// Earlier GPU work that an operation waits for before it accesses its memory; by default none.
struct After {
  oh_after kind = OH_AFTER_NOTHING;
  void* handle = nullptr;
  bool on_device = false;  // the memory is known to be device memory
  static After stream(void* stream) { return {OH_AFTER_STREAM, stream, false}; }  // a CUstream
  static After event(void* event) { return {OH_AFTER_EVENT, event, false}; }      // a CUevent
};

namespace detail {
template <typename T, void (*Release)(T*)>
struct Releaser {
  void operator()(T* handle) const { Release(handle); }
};
template <typename T, void (*Release)(T*)>
using Handle = std::unique_ptr<T, Releaser<T, Release>>;

// Bytes from a function that fills a buffer or returns the size it needs. The size may grow between
// two calls, as that of a flight record does.
template <typename Fill>
Bytes fill(size_t guess, Fill fill_function) {
  Bytes bytes(guess);
  size_t size = bytes.size();
  oh_status status = fill_function(bytes.data(), &size);
  while (status == OH_ERR_RANGE && size > bytes.size()) {
    bytes.resize(size + size / 8);
    size = bytes.size();
    status = fill_function(bytes.data(), &size);
  }
  check(status);
  bytes.resize(size);
  return bytes;
}
template <typename T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}
inline oh_transfer_options with(Timeout timeout, After after = {}) {
  auto options = sized<oh_transfer_options>();
  options.timeout_ns = timeout.count();
  options.after = after.kind;
  options.after_handle = after.handle;
  options.on_device = after.on_device;
  return options;
}
inline oh_put_options with(Timeout timeout, const Bytes* notify, After after) {
  auto options = sized<oh_put_options>();
  options.timeout_ns = timeout.count();
  options.after = after.kind;
  options.after_handle = after.handle;
  options.on_device = after.on_device;
  if (notify) {
    options.notify = notify->empty() ? static_cast<const void*>("") : notify->data();
    options.notify_size = notify->size();
  }
  return options;
}
}  // namespace detail

}  // namespace onehop

#endif  // ONEHOP_ONEHOP_OPTIONS_HPP_
