// SPDX-License-Identifier: Apache-2.0
//
// locate(): finds where the memory of an operation is, and which earlier work it must wait for.
//
// Threading: any thread, without a link's lock: it calls the driver.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "device/after.h"
#include "memory/gpu_memory.h"

namespace oh {

// The local memory of an operation. For host memory only data, size and `pinned` are set: earlier
// work has ended.
struct LocalBuffer {
  const void* data = nullptr;
  uint64_t size = 0;
  bool on_device = false;
  bool near = false;    // on the endpoint's device, and not managed
  bool pinned = false;  // host memory that is registered with the driver
  After after;
  std::shared_ptr<const GpuExport> exported;  // null: not known
};

struct Locate {
  // Query whether earlier work is done already. Otherwise the copy engine waits for it, which saves
  // the query.
  bool ask = true;
  // Find the export: the peer may have to map the memory.
  bool exported = false;
  // How long the calling thread waits for earlier work on host memory.
  Deadline host = Deadline::never();
};

// `gpu`: the endpoint's; null: host memory only. OH_ERR_INVALID: the operation needs a GPU, and the
// endpoint has none; OH_ERR_FAULT: the device memory has been freed; OH_ERR_NOT_VIABLE: only
// another device can access it.
Result<LocalBuffer> locate(const std::shared_ptr<cuda::Gpu>& gpu, const void* data, uint64_t size,
                           const AfterOption& after, const Locate& how);

// Finds the export of a device buffer, unless it is known already.
Status find_export(const cuda::Gpu& gpu, LocalBuffer* buffer);

// Whether the endpoint's device can access the memory. Every copy engine of the process can access
// cudaMalloc memory; other memory has its own access rights.
Status check_device(const cuda::Gpu& gpu, const GpuExport& exported);

// Whether the GPU's kernels can access memory of this process: the GPU's own memory, and cudaMalloc
// memory of other devices. A copy from freed memory fails; a kernel access destroys the context.
bool kernels_reach(cuda::Gpu& gpu, uint64_t base, uint64_t length);

// Host memory of this process as a GPU accesses it.
struct PinnedView {
  bool pinned = false;  // kernels can access it, and engines at full speed
  uint64_t shift = 0;   // the device address minus the host address
  // Keep memory that onehop shares mapped and registered.
  std::shared_ptr<void> memory = nullptr;
  std::shared_ptr<cuda::Pinned> registration = nullptr;
};
// Registers shared memory of onehop if it is not registered. Other memory is pinned if the
// application has pinned it, which only the driver knows: `ask`.
PinnedView view_pinned(const std::shared_ptr<cuda::Gpu>& gpu, const void* data, uint64_t size,
                       bool ask);
// The same for a mapped block of host memory of another process.
PinnedView view_pinned(const std::shared_ptr<cuda::Gpu>& gpu,
                       const std::shared_ptr<ImportedBlock>& block);

// Waits until earlier work is done. OH_ERR_TIMEOUT: `what` names the memory in the text.
// OH_ERR_CLOSED: the deadline was cancelled.
Status wait_for_pending(After* after, Deadline deadline, const char* what);
inline Status wait_for_producer(After* after, Deadline deadline, const char* what) {
  return after->pending() ? wait_for_pending(after, deadline, what) : Status();
}

}  // namespace oh
