// SPDX-License-Identifier: Apache-2.0
#include "kernels/image.h"

#include <algorithm>

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

uint32_t kernel_architecture(std::span<const uint32_t> all, uint32_t gpu) {
  constexpr size_t kWithPtx = 2;  // cmake/KernelImage.cmake
  uint32_t machine = 0;
  uint32_t ptx = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] > gpu) continue;
    if (all[i] / 10 == gpu / 10) machine = std::max(machine, all[i]);
    if (i < kWithPtx) ptx = std::max(ptx, all[i]);
  }
  return machine != 0 ? machine : ptx;
}

uint32_t kernel_architecture(uint32_t gpu) {
#if defined(OH_HAVE_KERNELS)
  static constexpr uint32_t kAll[] = {OH_KERNEL_ARCHITECTURES};
  return kernel_architecture(kAll, gpu);
#else
  return gpu;  // of the fake driver
#endif
}

}  // namespace oh
