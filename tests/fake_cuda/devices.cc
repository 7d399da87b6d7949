// SPDX-License-Identifier: Apache-2.0
//
// Devices: count and attributes, as visible to this process.
//
// Threading: any thread.
#include <cstdio>

#include "call.h"

namespace oh::cuda {
using namespace fake;

namespace {
bool is_device(Device device) {
  return device >= 0 && static_cast<size_t>(device) < config().visible.size();
}
int physical_of(Device device) { return config().visible[static_cast<size_t>(device)]; }
}  // namespace

Code cuDeviceGetCount(int* count) {
  Call call(Symbol::cuDeviceGetCount, kAnything);
  if (!call.ok()) return call.code();
  *count = static_cast<int>(config().visible.size());
  return kSuccess;
}

Code cuDeviceGet(Device* device, int ordinal) {
  Call call(Symbol::cuDeviceGet, kAnything);
  if (!call.ok()) return call.code();
  if (!is_device(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

Code cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  Call call(Symbol::cuDeviceGetUuid_v2, kAnything);
  if (!call.ok()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  *uuid = uuid_of(physical_of(device));
  return kSuccess;
}

Code cuDeviceGetName(char* name, int size, Device device) {
  Call call(Symbol::cuDeviceGetName, kAnything);
  if (!call.ok()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  if (size <= 0) return kInvalidValue;
  snprintf(name, static_cast<size_t>(size), "%s", config().name.c_str());
  return kSuccess;
}

Code cuDeviceGetAttribute(int* value, int attribute, Device device) {
  Call call(Symbol::cuDeviceGetAttribute, kAnything);
  if (!call.ok()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  switch (attribute) {
    case kDevicePciBus:
      *value = 0x17 + physical_of(device);
      return kSuccess;
    case kDevicePciDevice:
    case kDevicePciDomain:
    case kDeviceMinor:
    case kDeviceComputeMode:  // any number of processes
    case kDeviceMps:
      *value = 0;
      return kSuccess;
    case kDeviceHostNuma:
      *value = config().numa_of(physical_of(device));
      return kSuccess;
    case kDeviceProcessors:
      *value = 64;
      return kSuccess;
    case kDeviceMajor:
      *value = 9;
      return kSuccess;
    case kDeviceStreamMemOps64:
      *value = 1;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

Code cuDeviceCanAccessPeer(int* can, Device device, Device peer) {
  Call call(Symbol::cuDeviceCanAccessPeer, kAnything);
  if (!call.ok()) return call.code();
  if (!is_device(device) || !is_device(peer)) return kInvalidDevice;
  *can = device != peer && config().can_access(physical_of(device), physical_of(peer)) ? 1 : 0;
  return kSuccess;
}

Code cuDeviceGetP2PAttribute(int* value, int attribute, Device device, Device peer) {
  Call call(Symbol::cuDeviceGetP2PAttribute, kAnything);
  if (!call.ok()) return call.code();
  if (!is_device(device) || !is_device(peer) || device == peer) return kInvalidDevice;
  if (attribute != kP2pNativeAtomics) return kInvalidValue;
  const bool can = config().can_access(physical_of(device), physical_of(peer));
  *value = can && config().says_atomics ? 1 : 0;
  return kSuccess;
}

}  // namespace oh::cuda
