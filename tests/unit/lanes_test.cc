// SPDX-License-Identifier: Apache-2.0
#include "lane/lanes.h"

#include <map>

#include "unit/fake_gpu.h"

namespace lanes_test {
namespace {

using namespace oh;
using unit::is_ok;

class LanesTest : public unit::GpuTest {
 protected:
  std::unique_ptr<Lanes> make(uint64_t slab = kernels::kLeastSlab, uint64_t small = 1 << 18) const {
    Result<std::unique_ptr<Lanes>> lanes = Lanes::create(gpu, slab, small);
    EXPECT_TRUE(is_ok(lanes));
    return lanes.ok() ? std::move(*lanes) : nullptr;
  }
};

// The memory of lanes does not overlap, and a wide lane's memory grows with the slab.
TEST(SlabTest, TheLanesOfEverySizeOfSlabLieApart) {
  using namespace kernels;
  for (uint64_t slab : {kLeastSlab, kLeastSlab + 1, kLeastFirstRing - 1, kLeastFirstRing,
                        6144 * kKiB, kWideSlab - 1, kWideSlab, 32768 * kKiB, 262144 * kKiB}) {
    SCOPED_TRACE(slab);
    std::map<uint64_t, uint64_t> used{{0, kLinesAt}};
    for (uint32_t lane = 0; lane < OH_LANES; ++lane) {
      const LanePlace place = lane_place(slab, lane);
      EXPECT_EQ(place.lines % 16, 0u);
      EXPECT_EQ(place.chunks % 16, 0u);
      EXPECT_LE(place.chunk_slots, onehop::detail::kMostChunks);
      EXPECT_GE(place.chunk_shift, lane == 0 || slab >= kWideSlab ? kLeastWideChunk : kNarrowChunk);
      const uint64_t lines = uint64_t{16} << place.ring_shift;
      const uint64_t chunks = uint64_t{place.chunk_slots} << place.chunk_shift;
      used[place.lines] = place.lines + lines;
      used[place.chunks] = place.chunks + chunks;
    }
    EXPECT_EQ(used.size(), 1u + 2 * OH_LANES);
    uint64_t end = 0;
    for (const auto& [from, to] : used) {
      EXPECT_GE(from, end);
      end = to;
    }
    EXPECT_LE(end, slab);
  }
  EXPECT_EQ(lane_place(kLeastSlab, 0).chunk_shift, 14u);
  EXPECT_EQ(lane_place(kLeastSlab, 0).chunk_slots, 32u);
  EXPECT_EQ(lane_place(6144 * kKiB, 0).chunk_shift, 16u);
  EXPECT_EQ(lane_place(6144 * kKiB, 0).chunk_slots, 64u);
  EXPECT_EQ(lane_place(6144 * kKiB, 1).chunk_shift, 12u);
  EXPECT_EQ(lane_place(262144 * kKiB, 15).chunk_shift, 17u);
  EXPECT_EQ(lane_place(kLeastFirstRing - 1, 0).ring_shift, 15u);
  EXPECT_EQ(lane_place(kLeastFirstRing, 0).ring_shift, 16u);
  EXPECT_EQ(lane_place(6144 * kKiB, 1).ring_shift, 11u);
  EXPECT_EQ(lane_place(262144 * kKiB, 1).ring_shift, 15u);
}

// A receive of a small message does not expect a large one that fits.
TEST_F(LanesTest, BothSidesUseTheSmallerSizes) {
  std::unique_ptr<Lanes> one = make();
  std::unique_ptr<Lanes> other = make(2 * kernels::kLeastSlab, 5000);
  ASSERT_TRUE(one && other);
  one->connect(other->slab()->address(), other->sizes(), other->slab());
  other->connect(one->slab()->address(), one->sizes(), one->slab());
  for (const Lanes* lanes : {one.get(), other.get()}) {
    EXPECT_EQ(lanes->handle(0).small_max, 5000U);
    EXPECT_EQ(lanes->most_buffered(0), 5000U);
    EXPECT_EQ(lanes->handle(0).chunk_slots,
              kernels::lane_place(kernels::kLeastSlab, 0).chunk_slots);
  }
}

// Within a process one side's kernels may still write into the other side's memory when that
// closes.
TEST_F(LanesTest, ASlabStaysWhileTheOtherSideHasIt) {
  std::unique_ptr<Lanes> one = make();
  std::unique_ptr<Lanes> other = make();
  ASSERT_TRUE(one && other);
  one->connect(other->slab()->address(), other->sizes(), other->slab());
  other->connect(one->slab()->address(), one->sizes(), one->slab());
  std::weak_ptr<Slab> slab = other->slab();
  other.reset();
  EXPECT_FALSE(slab.expired());
  one.reset();
  EXPECT_TRUE(slab.expired());
}

// As an application's kernel that ended while it held the half: nothing leaks (TearDown checks).
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

// Another user may temporarily hold the memory that a launch needs: nothing leaks (TearDown
// checks).
TEST_F(LanesTest, ASlabIsGivenBackThoughALaunchFails) {
  std::unique_ptr<Lanes> lanes = make();
  ASSERT_TRUE(lanes);
  ASSERT_EQ(fake.fail("cuLaunchKernelEx", 1, cuda::kOutOfMemory), 0);
  lanes.reset();
}

TEST_F(LanesTest, TheyOpenWhenTheDeviceHasRunTheirKernels) {
  std::unique_ptr<Lanes> lanes = make();
  ASSERT_TRUE(lanes);
  Result<bool> open = false;
  while (open.ok() && !*open) open = lanes->is_open();
  EXPECT_TRUE(is_ok(open));
}

}  // namespace
}  // namespace lanes_test
