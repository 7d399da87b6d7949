// SPDX-License-Identifier: Apache-2.0
//
// locate(): where the memory of an operation is, and which earlier work it has to wait for.
//
// Threading: any thread, without a link's lock: it asks the driver.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "device/after.h"
#include "memory/gpu_memory.h"

namespace oh {

// The local memory of an operation. Of host memory nothing else is said: earlier work is done.
struct LocalBuffer {
  const void* data = nullptr;
  uint64_t size = 0;
  bool on_device = false;
  bool near = false;  // of the endpoint's device, not managed
  After after;
  std::shared_ptr<const GpuExport> exported;  // where it is known to be
};

struct Locate {
  // Ask whether earlier work is done already. Else the engine waits, which saves the question.
  bool ask = true;
  // Find the export: the other side may have to map it.
  bool exported = false;
  // How long host memory waits for earlier work: the CPU knows of no events.
  Deadline host = Deadline::never();
};

// `gpu`: the endpoint's, null for host memory only. OH_ERR_INVALID: it needs a GPU that is not
// there; OH_ERR_FAULT: device memory that has been freed; OH_ERR_NOT_VIABLE: another device's.
Result<LocalBuffer> locate(const std::shared_ptr<cuda::Gpu>& gpu, const void* data, uint64_t size,
                           const AfterOption& after, const Locate& how);

// Finds the export of a buffer on a device, if that has not been done.
Status find_export(const cuda::Gpu& gpu, LocalBuffer* buffer);

// Whether the endpoint's device reaches the memory: every engine of the process reaches what
// cudaMalloc gives; everything else has access rights of its own.
Status check_device(const cuda::Gpu& gpu, const GpuExport& exported);

// Whether the GPU's kernels reach memory of this process: its own, and of other devices what
// cudaMalloc allocates. A copy from freed memory fails; a kernel's access destroys the context.
bool kernels_reach(cuda::Gpu& gpu, uint64_t base, uint64_t length);

// Waits until earlier work is done. OH_ERR_TIMEOUT: `what` names the memory in the text.
// OH_ERR_CLOSED: the deadline was cancelled.
Status wait_for_pending(After* after, Deadline deadline, const char* what);
inline Status wait_for_producer(After* after, Deadline deadline, const char* what) {
  return after->pending() ? wait_for_pending(after, deadline, what) : Status();
}

}  // namespace oh
