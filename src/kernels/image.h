// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of the build, as one fatbin inside the library.
#pragma once

#include "base/wire.h"

namespace oh {

// Empty when the build has no kernels.
ByteView kernel_image();

}  // namespace oh
