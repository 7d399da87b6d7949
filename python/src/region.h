// SPDX-License-Identifier: Apache-2.0
//
// Regions: registered local memory and the attached memory of a peer; both can be sliced.
//
// Threading: needs the GIL.
#pragma once

#include <memory>

#include "buffer.h"
#include "context.h"

namespace onehop::python {

// A registered buffer. Keeps the memory until no peer accesses it.
class RegionMemory {
 public:
  RegionMemory(std::shared_ptr<Context> context, nb::handle object, Access access);
  ~RegionMemory();

  std::shared_ptr<Context> context;
  // A shared holder: code that runs without the GIL may still use it after this object is
  // destroyed.
  std::shared_ptr<Owned<Region>> region;
  std::unique_ptr<Buffer> buffer;
  const Access access;  // of peers
};

// A region, or a slice of one.
struct PyRegion {
  std::shared_ptr<RegionMemory> memory;
  size_t offset = 0;
  size_t size = 0;
  uint8_t* data() const { return memory->buffer->data() + offset; }
};

// A peer's region, shared by all its slices; null after detach.
struct RemoteMemory {
  std::shared_ptr<Owned<RemoteRegion>> region;
};

struct PyRemoteRegion {
  std::shared_ptr<RemoteMemory> memory;
  size_t offset = 0;
  size_t size = 0;
  // Keeps the region for one call, even if it is detached meanwhile. Raises if it is already
  // detached.
  std::shared_ptr<Owned<RemoteRegion>> hold() const;
};

struct Slice {
  size_t offset;
  size_t size;
};
// The bytes that `key`, a slice with step 1, selects from `size` bytes. Unlike a list's, a slice
// that is out of range is an error: it would transfer fewer bytes than the caller expects.
Slice slice_of(nb::handle key, size_t size);

// Converts an argument to a remote region; raises InvalidType.
PyRemoteRegion& remote_of(nb::handle object);

// The object as a region; null if it is none.
const PyRegion* as_region(nb::handle object);

void bind_region(nb::module_& module);
// RemoteRegion.device_memory.
void bind_remote_memory(nb::class_<PyRemoteRegion>& type);

}  // namespace onehop::python
