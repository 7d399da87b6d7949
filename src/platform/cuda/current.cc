// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/current.h"

namespace oh::cuda {

Result<int> current_device(const Driver& driver) {
  OH_RETURN_IF_ERROR(driver.usable());
  Context current = nullptr;
  OH_CUDA_TRY(driver, context_get_current, &current);
  int count = 0;
  OH_CUDA_TRY(driver, device_count, &count);
  for (int ordinal = 0; current && ordinal < count; ++ordinal) {
    Device device = 0;
    OH_CUDA_TRY(driver, device_get, &device, ordinal);
    unsigned flags = 0;
    int active = 0;
    OH_CUDA_TRY(driver, primary_state, device, &flags, &active);
    // Retaining an inactive context would create it.
    if (active == 0) continue;
    Context primary = nullptr;
    OH_CUDA_TRY(driver, primary_retain, &primary, device);
    OH_CUDA_TRY(driver, primary_release, device);
    if (primary == current) return ordinal;
  }
  return error(OH_ERR_NOT_VIABLE, "%s on this thread: call cudaSetDevice first, or name the device",
               current ? "a context that is no device's primary one is current"
                       : "no CUDA device is current");
}

}  // namespace oh::cuda
