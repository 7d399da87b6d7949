// SPDX-License-Identifier: Apache-2.0
//
// Pointer attributes. For unknown memory the driver reports zero, and success.
//
// Threading: any thread.
#include "call.h"

namespace oh::cuda {
using namespace fake;

namespace {

template <typename T>
void put(void* out, T value) {
  *static_cast<T*>(out) = value;
}

unsigned memory_type(const Range& range) {
  const bool host = range.kind == Kind::kHost || range.kind == Kind::kHostAlias;
  return host ? kMemoryTypeHost : kMemoryTypeDevice;
}

uint64_t handle_types(const Range& range) {
  if (range.imported) return 0;
  if (range.kind == Kind::kVmm)
    return static_cast<uint64_t>(range.vmm->prop.requested_handle_types);
  if (range.kind == Kind::kPool) return static_cast<uint64_t>(range.pool->handle_types);
  return 0;
}

DevicePtr device_pointer(const Range& range, DevicePtr address) {
  if (range.kind != Kind::kHost || range.other == 0) return address;
  return range.other + (address - range.base);
}

// Writes 4 bytes for flags and ordinals, 8 for all others.
Code put_attribute(World& world, int attribute, const Range& range, DevicePtr address, void* out) {
  switch (attribute) {
    case kAttributeContext:
      put<Context>(out, range.context == nullptr ? nullptr : range.context->handle);
      return kSuccess;
    case kAttributeMemoryType:
      put<unsigned>(out, memory_type(range));
      return kSuccess;
    case kAttributeDevicePointer:
      put<DevicePtr>(out, device_pointer(range, address));
      return kSuccess;
    case kAttributeBufferId:
      put<uint64_t>(out, range.buffer_id);
      return kSuccess;
    case kAttributeIsManaged:
      put<unsigned>(out, range.kind == Kind::kManaged ? 1 : 0);
      return kSuccess;
    case kAttributeDeviceOrdinal:
      put<int>(out, range.ordinal);
      return kSuccess;
    case kAttributeLegacyIpcCapable:
      put<unsigned>(out, range.kind == Kind::kDevice && config().ipc ? 1 : 0);
      return kSuccess;
    case kAttributeRangeStart:
      put<DevicePtr>(out, range.kind == Kind::kVmm ? range.reservation : range.base);
      return kSuccess;
    case kAttributeRangeSize:
      put<size_t>(out,
                  range.kind == Kind::kVmm ? world.reservations[range.reservation] : range.size);
      return kSuccess;
    case kAttributeMapped:
      put<unsigned>(out, 1);
      return kSuccess;
    case kAttributeAllowedHandleTypes:
      put<uint64_t>(out, handle_types(range));
      return kSuccess;
    case kAttributeMemoryPool:
      put<MemoryPool>(out, range.kind == Kind::kPool ? range.pool->handle : nullptr);
      return kSuccess;
    case kAttributeMappingSize:
      put<size_t>(out, range.size);
      return kSuccess;
    case kAttributeMappingBase:
      put<DevicePtr>(out, range.base);
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

Code put_nothing(int attribute, void* out) {
  switch (attribute) {
    case kAttributeMemoryType:
    case kAttributeIsManaged:
    case kAttributeLegacyIpcCapable:
    case kAttributeMapped:
      put<unsigned>(out, 0);
      return kSuccess;
    case kAttributeDeviceOrdinal:
      put<int>(out, -2);  // CU_DEVICE_INVALID
      return kSuccess;
    case kAttributeContext:
    case kAttributeDevicePointer:
    case kAttributeBufferId:
    case kAttributeRangeStart:
    case kAttributeRangeSize:
    case kAttributeAllowedHandleTypes:
    case kAttributeMemoryPool:
    case kAttributeMappingSize:
    case kAttributeMappingBase:
      put<uint64_t>(out, 0);
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

}  // namespace

Code cuPointerGetAttributes(unsigned count, int* attributes, void** out, DevicePtr address) {
  Call call(Symbol::cuPointerGetAttributes, kAnything);
  if (!call.ok()) return call.code();
  if (count == 0 || attributes == nullptr || out == nullptr) return kInvalidValue;
  const Range* range = call.world().find(address);
  for (unsigned i = 0; i < count; ++i) {
    const Code code = range == nullptr
                          ? put_nothing(attributes[i], out[i])
                          : put_attribute(call.world(), attributes[i], *range, address, out[i]);
    if (code != kSuccess) return code;
  }
  return kSuccess;
}

}  // namespace oh::cuda
