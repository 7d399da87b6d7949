// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "kernels/image.h"
#include "unit/support.h"

namespace unit::kernel_image_test {
namespace {

using oh::kernel_architecture;

TEST(KernelImage, ADriverTakesMachineCodeOfTheMajorVersionElsePtx) {
  constexpr std::array<uint32_t, 4> kAll{80, 90, 100, 120};  // with PTX of 80 and 90
  struct {
    uint32_t gpu, taken;
  } const cases[] = {{70, 0},  {75, 0},    {80, 80},   {86, 80},  {89, 80},
                     {90, 90}, {100, 100}, {103, 100}, {110, 90}, {120, 120}};
  for (const auto& one : cases) EXPECT_EQ(kernel_architecture(kAll, one.gpu), one.taken) << one.gpu;
}

// Their code does not know clusters.
TEST(KernelImage, AnOldArchitectureRunsOnANewGpuByItsPtx) {
  EXPECT_EQ(kernel_architecture(std::array<uint32_t, 1>{80}, 90), 80U);
  EXPECT_EQ(kernel_architecture(std::array<uint32_t, 3>{80, 86, 100}, 90), 86U);
  EXPECT_EQ(kernel_architecture(std::array<uint32_t, 3>{75, 80, 86}, 90), 80U) << "no PTX of 86";
  EXPECT_EQ(kernel_architecture(std::array<uint32_t, 1>{100}, 90), 0U);
  EXPECT_EQ(kernel_architecture({}, 90), 0U);
}

}  // namespace
}  // namespace unit::kernel_image_test
