// SPDX-License-Identifier: Apache-2.0
#include "local.h"

#include "errors.h"

namespace onehop::python {

void Local::acquire(const Context& context, nb::handle object, Access access) {
  const char* no_device = context.no_device();
  on_gpu_ = !no_device;
  if (const PyRegion* region = as_region(object)) {
    if (no_device && region->memory->buffer->memory() == Memory::kDevice) {
      refuse_device(object, no_device);
    }
    if (access == Access::kWrite && region->memory->access == Access::kRead) {
      raise_invalid(
          "the Region was registered with access=\"r\": receive into the array it was made of, or "
          "register it with \"rw\"");
    }
    region_ = region->memory;
    data_ = region->data();
    size_ = region->size;
    return;
  }
  buffer_.acquire(object, {access, no_device});
  data_ = buffer_.data();
  size_ = buffer_.size();
}

void Local::share(const Local& other, Access access) {
  region_ = other.region_;
  if (!region_) buffer_.share(other.buffer_, access);
  data_ = other.data_;
  size_ = other.size_;
}

void Local::release() {
  buffer_.release();
  region_.reset();
  data_ = nullptr;
  size_ = 0;
}

}  // namespace onehop::python
