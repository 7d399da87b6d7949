// SPDX-License-Identifier: Apache-2.0
//
// VMM memory by its handles: created, exported, imported, queried.
//
// Threading: any thread.
#include <fcntl.h>

#include "call.h"

namespace oh::cuda {
using namespace fake;

namespace {

Code check(const AllocationProp& prop) {
  const auto devices = static_cast<int>(config().visible.size());
  if (!config().vmm) return kNotSupported;
  if (prop.type != kAllocationPinned || prop.location.type != kLocationDevice) return kNotSupported;
  if (prop.location.id < 0 || prop.location.id >= devices) return kInvalidDevice;
  if ((prop.requested_handle_types & kHandleTypeFabric) != 0) return kNotPermitted;
  if ((prop.requested_handle_types & ~kHandleTypePosixFd) != 0) return kNotSupported;
  return kSuccess;
}

AllocationHandle add(World& world, const std::shared_ptr<VmmAllocation>& memory) {
  if (memory->handle == 0) memory->handle = world.next_handle += 16;
  ++memory->references;
  world.vmm_handles[memory->handle] = memory;
  return memory->handle;
}

std::shared_ptr<VmmAllocation> find(const World& world, AllocationHandle handle) {
  const auto found = world.vmm_handles.find(handle);
  return found == world.vmm_handles.end() ? nullptr : found->second;
}

}  // namespace

Code cuMemGetAllocationGranularity(size_t* out, const AllocationProp* prop, int) {
  Call call(Symbol::cuMemGetAllocationGranularity, kAnything);
  if (!call.ok()) return call.code();
  const Code code = check(*prop);
  if (code == kSuccess) *out = kGranularity;
  return code;
}

Code cuMemCreate(AllocationHandle* out, size_t size, const AllocationProp* prop, uint64_t flags) {
  Call call(Symbol::cuMemCreate, kAnything);
  if (!call.ok()) return call.code();
  Code code = check(*prop);
  if (code != kSuccess) return code;
  if (size == 0 || size % kGranularity != 0 || flags != 0) return kInvalidValue;
  auto memory = std::make_shared<VmmAllocation>();
  const int physical = config().visible[static_cast<size_t>(prop->location.id)];
  memory->prop = *prop;
  code = Backing::create({Purpose::kVmm, physical, prop->requested_handle_types, size},
                         &memory->backing);
  if (code == kSuccess) *out = add(call.world(), memory);
  return code;
}

Code cuMemRetainAllocationHandle(AllocationHandle* out, void* pointer) {
  Call call(Symbol::cuMemRetainAllocationHandle, kAnything);
  if (!call.ok()) return call.code();
  const Range* range = call.world().find(reinterpret_cast<DevicePtr>(pointer));
  if (range == nullptr || range->kind != Kind::kVmm) return kInvalidValue;
  *out = add(call.world(), range->vmm);
  return kSuccess;
}

Code cuMemRelease(AllocationHandle handle) {
  Call call(Symbol::cuMemRelease, kAnything);
  if (!call.ok()) return call.code();
  const auto memory = find(call.world(), handle);
  if (memory == nullptr) return kInvalidValue;
  if (--memory->references == 0) call.world().vmm_handles.erase(handle);
  return kSuccess;
}

Code cuMemExportToShareableHandle(void* out, AllocationHandle handle, int type, uint64_t flags) {
  Call call(Symbol::cuMemExportToShareableHandle, kAnything);
  if (!call.ok()) return call.code();
  const auto memory = find(call.world(), handle);
  if (memory == nullptr || memory->imported || flags != 0) return kInvalidValue;
  if (type != kHandleTypePosixFd || (memory->prop.requested_handle_types & type) == 0) {
    return kInvalidValue;
  }
  const int fd = fcntl(memory->backing->fd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return kOutOfMemory;
  *static_cast<int*>(out) = fd;
  return kSuccess;
}

Code cuMemImportFromShareableHandle(AllocationHandle* out, void* shared, int type) {
  Call call(Symbol::cuMemImportFromShareableHandle, kAnything);
  if (!call.ok()) return call.code();
  if (!config().vmm) return kNotSupported;
  if (type == kHandleTypeFabric) return kNotPermitted;
  if (type != kHandleTypePosixFd) return kInvalidValue;
  // The caller keeps its descriptor.
  const int fd = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(shared)), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return kInvalidValue;
  auto memory = std::make_shared<VmmAllocation>();
  const Code code = Backing::adopt(fd, &memory->backing);
  if (code != kSuccess) return code;
  const BackingFacts& facts = memory->backing->facts();
  if (facts.purpose != Purpose::kVmm) return kInvalidValue;
  memory->imported = true;
  memory->prop.type = kAllocationPinned;
  memory->prop.location = {kLocationDevice, call.world().ordinal_of(facts.physical, 0)};
  *out = add(call.world(), memory);
  return kSuccess;
}

Code cuMemGetAllocationPropertiesFromHandle(AllocationProp* out, AllocationHandle handle) {
  Call call(Symbol::cuMemGetAllocationPropertiesFromHandle, kAnything);
  if (!call.ok()) return call.code();
  const auto memory = find(call.world(), handle);
  if (memory == nullptr) return kInvalidValue;
  *out = memory->prop;
  return kSuccess;
}

}  // namespace oh::cuda
