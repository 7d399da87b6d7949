// SPDX-License-Identifier: Apache-2.0
//
// After: earlier work on a GPU that an operation waits for, as an event. An owned event is returned
// to its GPU; otherwise the event is the caller's. AfterOption: the same as the caller specifies
// it.
//
// Threading: a value; one owner at a time.
#pragma once

#include <memory>
#include <utility>

#include "platform/cuda/gpu.h"

namespace oh {

// What a transfer waits for before it accesses its memory, as the caller specifies it.
struct AfterOption {
  enum class Kind { kNothing, kStream, kEvent } kind = Kind::kNothing;
  void* handle = nullptr;  // CUstream or CUevent
  bool on_device = false;  // the caller declares the memory to be device memory
  bool given() const { return kind != Kind::kNothing || on_device; }
};

class After {
 public:
  After() = default;
  After(std::shared_ptr<cuda::Gpu> gpu, cuda::Event event, bool owned)
      : gpu_(std::move(gpu)), event_(event), owned_(owned) {}
  After(After&& other) noexcept
      : gpu_(std::move(other.gpu_)),
        event_(std::exchange(other.event_, nullptr)),
        owned_(other.owned_) {}
  After& operator=(After&& other) noexcept {
    if (this != &other) {
      reset();
      gpu_ = std::move(other.gpu_);
      event_ = std::exchange(other.event_, nullptr);
      owned_ = other.owned_;
    }
    return *this;
  }
  ~After() { reset(); }

  // Drops the event: nothing is left to wait for.
  void reset() {
    if (event_ && owned_) gpu_->give_event(event_);
    event_ = nullptr;
    gpu_.reset();
  }
  bool pending() const { return event_ != nullptr; }
  cuda::Event event() const { return event_; }
  // Queries the driver: true when the work is done. Do not call under a lock.
  Result<bool> is_complete() const { return gpu_->is_complete(event_); }

 private:
  std::shared_ptr<cuda::Gpu> gpu_;
  cuda::Event event_ = nullptr;
  bool owned_ = false;
};

}  // namespace oh
