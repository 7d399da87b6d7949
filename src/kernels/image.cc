// SPDX-License-Identifier: Apache-2.0
#include "kernels/image.h"

#if defined(OH_HAVE_KERNELS)
// Laid into the library by image.S.in.
extern "C" const uint8_t oh_kernel_image_begin[];
extern "C" const uint8_t oh_kernel_image_end[];
#endif

namespace oh {

ByteView kernel_image() {
#if defined(OH_HAVE_KERNELS)
  return {oh_kernel_image_begin, static_cast<size_t>(oh_kernel_image_end - oh_kernel_image_begin)};
#else
  return {};
#endif
}

}  // namespace oh
