// SPDX-License-Identifier: Apache-2.0
#include "kernels/image.h"

#include <cstdint>

#if defined(OH_HAVE_KERNELS)
// Embedded in the library by image.S.in.
extern "C" const uint8_t oh_kernel_image_begin[];
extern "C" const uint8_t oh_kernel_image_end[];
#endif

namespace oh {

ByteView kernel_image() {
#if defined(OH_HAVE_KERNELS)
  return {oh_kernel_image_begin, static_cast<size_t>(oh_kernel_image_end - oh_kernel_image_begin)};
#elif defined(OH_KERNELS_FOR_TESTS)
  // The fake driver implements the kernels itself and ignores the image; a real driver refuses it.
  static constexpr uint8_t kNone[] = "no kernels";
  return {kNone, sizeof(kNone)};
#else
  return {};
#endif
}

}  // namespace oh
