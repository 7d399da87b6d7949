// SPDX-License-Identifier: Apache-2.0
//
// The devices that this process sees, how they are named, and what each of them is. Asks the driver
// without a context.
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
  int numa = -1;    // node of the host, -1: not known
  int major = 0;    // compute capability
  int minor = 0;
  bool mps = false;  // processes share it at once
  int processors = 0;
};

// All devices that this process sees.
oh::Result<std::vector<DeviceFacts>> list_devices(const Driver& driver);
std::string uuid_text(const Uuid& uuid);  // "GPU-…"

// "cuda" (device 0), "cuda:N", or a UUID ("GPU-…"). OH_ERR_INVALID: no such device, with the list
// of those there are.
oh::Result<Device> device_named(const Driver& driver, const std::string& name);
// The device with that UUID, if this process sees it.
std::optional<Device> find_device(const Driver& driver, const std::string& uuid);

// Why copies of `device` do not reach the memory of `other`. Empty: they do, or only the attempt
// will tell.
std::string why_no_peer_access(const Driver& driver, Device device, Device other);

}  // namespace oh::cuda
