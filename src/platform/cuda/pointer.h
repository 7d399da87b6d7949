// SPDX-License-Identifier: Apache-2.0
//
// What the driver knows of an address, asked in one call.
//
// Threading: any thread; needs no current context and no device.
#pragma once

#include "base/status.h"
#include "platform/cuda/driver.h"

namespace oh::cuda {

struct PointerFacts {
  uint64_t buffer_id = 0;  // of the allocation; 0: there is none
  unsigned type = 0;       // kMemoryTypeHost, kMemoryTypeDevice; 0: the driver does not know it
  Device device = 0;
  bool managed = false;
  uint64_t range_start = 0;  // the allocation; of VMM memory the whole reservation
  uint64_t range_size = 0;
  bool mapped = false;
  // Only of Depth::kAll.
  bool legacy_ipc = false;
  uint64_t handle_types = 0;
  MemoryPool pool = nullptr;
  uint64_t mapping_base = 0;  // the piece of VMM memory
  uint64_t mapping_size = 0;
};

// How much to ask; each attribute costs some nanoseconds.
enum class Depth : unsigned { kId = 1, kPlace = 7, kAll = 12 };

// All zero for an address that the driver does not know.
Result<PointerFacts> pointer_facts(const Driver& driver, DevicePtr address, Depth depth);

}  // namespace oh::cuda
