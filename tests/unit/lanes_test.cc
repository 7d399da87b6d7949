// SPDX-License-Identifier: Apache-2.0
#include "lane/lanes.h"

#include "unit/fake_gpu.h"

namespace {

using namespace oh;
using unit::is_ok;

class LanesTest : public unit::GpuTest {
 protected:
  std::unique_ptr<Lanes> make() const {
    Result<std::unique_ptr<Lanes>> lanes = Lanes::create(gpu, kernels::kLeastSlab, 1 << 18);
    EXPECT_TRUE(is_ok(lanes));
    return lanes.ok() ? std::move(*lanes) : nullptr;
  }
};

// Within a process kernels of one side may write into the other's memory when that one closes.
TEST_F(LanesTest, ASlabStaysWhileTheOtherSideHasIt) {
  std::unique_ptr<Lanes> one = make();
  std::unique_ptr<Lanes> other = make();
  ASSERT_TRUE(one && other);
  one->connect(other->slab()->address(), other->slab()->bytes(), other->slab());
  other->connect(one->slab()->address(), one->slab()->bytes(), one->slab());
  std::weak_ptr<Slab> slab = other->slab();
  other.reset();
  EXPECT_FALSE(slab.expired());
  one.reset();
  EXPECT_TRUE(slab.expired());
}

// As a kernel of the application's that has ended with the half: nothing stays behind (TearDown).
TEST_F(LanesTest, ASlabIsGivenBackThoughAKernelHasLeftAHalfTaken) {
  std::unique_ptr<Lanes> lanes = make();
  ASSERT_TRUE(lanes);
  Result<bool> open = false;
  while (open.ok() && !*open) open = lanes->is_open();
  ASSERT_TRUE(is_ok(open));
  const uint64_t tx = lanes->slab()->address() +
                      kernels::lane_place(lanes->slab()->bytes(), 7).memory +
                      offsetof(onehop::detail::LaneMemory, tx.state);
  Bytes state = fake.bytes_at(tx, sizeof(uint64_t));
  ASSERT_EQ(state.size(), sizeof(uint64_t));
  state[6] |= static_cast<uint8_t>(onehop::detail::kBusy >> 48);
  ASSERT_TRUE(fake.write(tx, state));
  std::weak_ptr<Slab> slab = lanes->slab();
  lanes.reset();
  EXPECT_TRUE(slab.expired());
}

TEST_F(LanesTest, TheyOpenWhenTheDeviceHasRunTheirKernels) {
  std::unique_ptr<Lanes> lanes = make();
  ASSERT_TRUE(lanes);
  Result<bool> open = false;
  while (open.ok() && !*open) open = lanes->is_open();
  EXPECT_TRUE(is_ok(open));
}

}  // namespace
