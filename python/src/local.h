// SPDX-License-Identifier: Apache-2.0
//
// Local: the local memory of a transfer: a registered region, a slice of one, or any buffer.
//
// Threading: needs the GIL.
#pragma once

#include <deque>

#include "after.h"
#include "region.h"

namespace onehop::python {

class Local {
 public:
  Local() = default;
  Local(const Context& context, nb::handle object, Access access) {
    acquire(context, object, access);
  }

  // Raises as Buffer does, and if the context's endpoint cannot access the memory.
  void acquire(const Context& context, nb::handle object, Access access);
  // Refers to the same memory as `other`, with a reference of its own.
  void share(const Local& other, Access access);
  void release();
  // See Buffer::forget_stream().
  void forget_stream() { buffer_.forget_stream(); }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  Memory memory() const { return buffer().memory(); }
  // Null: it is a region.
  const Buffer* own_buffer() const { return region_ ? nullptr : &buffer_; }
  // Converts the argument `after` for this memory.
  After after(nb::handle given) const {
    After after = after_of(given, buffer(), on_gpu_);
    after.on_device = on_gpu_ && memory() == Memory::kDevice && buffer().size() > 0;
    return after;
  }

 private:
  const Buffer& buffer() const { return region_ ? *region_->buffer : buffer_; }

  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool on_gpu_ = false;  // the endpoint
  std::shared_ptr<RegionMemory> region_;
  Buffer buffer_;  // unused if it is a region
};

// The local memory of an operation over several pieces.
using Locals = std::deque<Local>;

}  // namespace onehop::python
