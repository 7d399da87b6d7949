// SPDX-License-Identifier: Apache-2.0
//
// The driver's attributes of an address, from one call.
//
// Threading: any thread; needs no current context and no device.
#pragma once

#include "base/status.h"
#include "platform/cuda/driver.h"

namespace oh::cuda {

struct PointerFacts {
  uint64_t buffer_id = 0;  // of the allocation; 0: none
  unsigned type = 0;       // kMemoryTypeHost, kMemoryTypeDevice; 0: unknown address
  Device device = 0;
  bool managed = false;
  uint64_t range_start = 0;  // the allocation; of VMM memory the whole reservation
  uint64_t range_size = 0;
  bool mapped = false;
  // Only with Depth::kAll.
  bool legacy_ipc = false;
  uint64_t handle_types = 0;
  MemoryPool pool = nullptr;
  uint64_t mapping_base = 0;  // the VMM mapping that contains the address
  uint64_t mapping_size = 0;
};

// How many attributes to query; each costs some nanoseconds.
enum class Depth : unsigned { kId = 1, kPlace = 7, kAll = 12 };

// All zero for an address that the driver does not know.
Result<PointerFacts> pointer_facts(const Driver& driver, DevicePtr address, Depth depth);

}  // namespace oh::cuda
