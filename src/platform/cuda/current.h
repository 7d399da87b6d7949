// SPDX-License-Identifier: Apache-2.0
//
// The calling thread's current device, as set by cudaSetDevice.
//
// Threading: any thread.
#pragma once

#include "base/status.h"
#include "platform/cuda/driver.h"

namespace oh::cuda {

// The ordinal of the device whose primary context is current. OH_ERR_NOT_VIABLE: no context is
// current, or one that is not primary.
Result<int> current_device(const Driver& driver);

}  // namespace oh::cuda
