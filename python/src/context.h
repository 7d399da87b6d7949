// SPDX-License-Identifier: Apache-2.0
//
// Context: an endpoint or a communicator, shared by all of its Python objects.
//
// Threading: any thread; exceptions are marked. Ownership: the objects of a context share it; the
// last one releases its handle. In a child of fork() nothing is released: the handles depend on
// locks and threads of the parent.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "gil.h"
#include "onehop/onehop.hpp"

namespace onehop::python {

namespace nb = nanobind;

// Number of forks between the module's import and this process.
uint32_t forks();
void watch_forks();

// Owns a handle; does not release it in a child of fork().
template <typename T>
class Owned {
 public:
  Owned() = default;
  explicit Owned(T value) : value_(new T(std::move(value))), born_(forks()) {}
  Owned(Owned&&) noexcept = default;
  Owned& operator=(Owned&& other) noexcept {
    reset();
    value_ = std::move(other.value_);
    born_ = other.born_;
    return *this;
  }
  ~Owned() { reset(); }
  void reset() {
    if (born_ != forks()) (void)value_.release();
    value_.reset();
  }
  explicit operator bool() const { return value_ != nullptr; }
  T* operator->() const { return value_.get(); }
  T& operator*() const { return *value_; }

 private:
  std::unique_ptr<T> value_;
  uint32_t born_ = 0;
};

class Context {
 public:
  static std::shared_ptr<Context> create(const oh_endpoint_options& options);
  static std::shared_ptr<Context> create(oh_comm_options options, const int* cancelled);

  // Ends all waits; later calls raise.
  void close();
  EndpointView endpoint() const {
    return endpoint_ ? EndpointView(endpoint_->get()) : communicator_->endpoint();
  }
  // Requires is_communicator().
  Communicator& communicator() const { return *communicator_; }
  bool is_communicator() const { return static_cast<bool>(communicator_); }
  bool is_closed() const { return closed_.load(std::memory_order_relaxed); }
  const std::string& device() const { return device_; }
  // The CUDA ordinal of the endpoint's GPU; -1: an endpoint for host memory.
  int32_t ordinal() const { return ordinal_; }
  // Null if the endpoint is on a GPU; otherwise why it cannot transfer device memory, and the fix.
  const char* no_device() const { return no_device_; }
  // Raises in a child of fork() and after close().
  void check() const;
  int64_t default_timeout_ns() const { return default_timeout_ns_; }

 private:
  explicit Context(const oh_endpoint_options& options);
  Owned<Endpoint> endpoint_;
  Owned<Communicator> communicator_;
  int64_t default_timeout_ns_;
  std::string device_;  // "host", or the GPU's name as given
  int32_t ordinal_ = -1;
  const char* no_device_;
  std::atomic<bool> closed_{false};  // closed through this context; for error texts only
  uint32_t born_ = forks();
};

// Closes all open contexts, when the interpreter exits.
void close_all();

}  // namespace onehop::python
