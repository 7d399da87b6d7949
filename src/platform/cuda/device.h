// SPDX-License-Identifier: Apache-2.0
//
// The devices visible to this process: names and properties. Queries the driver without a context.
//
// Threading: any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/cuda/driver.h"

namespace oh::cuda {

// The properties of one device.
struct DeviceFacts {
  Device ordinal = 0;
  Uuid uuid{};
  std::string name;
  std::string pci;  // "0000:17:00.0"
  int numa = -1;    // NUMA node of the host; -1: unknown
  int major = 0;    // compute capability
  int minor = 0;
  bool mps = false;  // MPS: processes share the device concurrently
  int processors = 0;
};

// All visible devices.
oh::Result<std::vector<DeviceFacts>> list_devices(const Driver& driver);
std::string uuid_text(const Uuid& uuid);  // "GPU-…"

// Finds a device by "cuda" (device 0), "cuda:N" or UUID ("GPU-…"). OH_ERR_INVALID: there is no such
// device; the text lists the visible ones.
oh::Result<Device> device_named(const Driver& driver, const std::string& name);
// The device with this UUID, if it is visible.
std::optional<Device> find_device(const Driver& driver, const std::string& uuid);

// Why copies of `device` cannot reach the memory of `other`. Empty if they can, or if only an
// attempt can tell.
std::string why_no_peer_access(const Driver& driver, Device device, Device other);

}  // namespace oh::cuda
