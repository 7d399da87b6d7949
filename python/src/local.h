// SPDX-License-Identifier: Apache-2.0
//
// Local: this process's side of a transfer, as Python gave it: a registered region, a slice of one,
// or any buffer.
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

  // Raises as Buffer does, and when the context's endpoint does not reach the memory.
  void acquire(const Context& context, nb::handle object, Access access);
  // The same bytes as the other's: one more hold.
  void share(const Local& other, Access access);
  void release();
  // It will be asked for `after` long after the object has told its stream.
  void forget_stream() { buffer_.forget_stream(); }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  Memory memory() const { return buffer().memory(); }
  // Null: it is a region.
  const Buffer* own_buffer() const { return region_ ? nullptr : &buffer_; }
  // What the argument `after` stands for here.
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
  Buffer buffer_;  // unless it is a region
};

// The local sides of one operation.
using Locals = std::deque<Local>;

}  // namespace onehop::python
