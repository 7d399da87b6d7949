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

// A registered buffer. Its memory is kept until no peer touches it.
class RegionMemory {
 public:
  RegionMemory(std::shared_ptr<Context> context, nb::handle object, Access access);
  ~RegionMemory();

  std::shared_ptr<Context> context;
  // A holder of its own: what runs without the GIL may still use it when this goes.
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

// A peer's region, as all its slices share it: empty once it is detached.
struct RemoteMemory {
  std::shared_ptr<Owned<RemoteRegion>> region;
};

struct PyRemoteRegion {
  std::shared_ptr<RemoteMemory> memory;
  size_t offset = 0;
  size_t size = 0;
  // A hold for one call, during which it may be detached. Raises once it is.
  std::shared_ptr<Owned<RemoteRegion>> hold() const;
};

struct Slice {
  size_t offset;
  size_t size;
};
// The bytes of `key`, a slice with step 1, within `size` bytes. Unlike a list's, a slice that
// reaches outside is an error: it would move fewer bytes than the caller believes.
Slice slice_of(nb::handle key, size_t size);

// The remote region that an argument is; raises InvalidType.
PyRemoteRegion& remote_of(nb::handle object);

// The region that the object is, or null.
const PyRegion* as_region(nb::handle object);

void bind_region(nb::module_& module);
// RemoteRegion.device_memory.
void bind_remote_memory(nb::class_<PyRemoteRegion>& type);

}  // namespace onehop::python
