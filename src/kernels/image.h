// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of the build, as one fatbin inside the library.
#pragma once

#include <cstdint>
#include <span>

#include "base/wire.h"

namespace oh {

// Empty when the build has no kernels.
ByteView kernel_image();

// The architecture, 90 for sm_90, whose code of the image the driver takes for a GPU of compute
// capability `gpu`: machine code of the same major version, else PTX. 0: the image has none.
uint32_t kernel_architecture(uint32_t gpu);
// The same for an image of these architectures, as ONEHOP_CUDA_ARCHITECTURES lists them.
uint32_t kernel_architecture(std::span<const uint32_t> all, uint32_t gpu);

}  // namespace oh
