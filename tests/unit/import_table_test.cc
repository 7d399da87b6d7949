// SPDX-License-Identifier: Apache-2.0
//
// The table of a Lanes on the fake GPU.
#include "lane/import_table.h"

#include <unistd.h>

#include <cstring>

#include "kernels/slab.h"
#include "lane/lanes.h"
#include "unit/fake_gpu.h"

namespace import_table_test {
namespace {

using namespace oh;
using unit::is_ok;

class ImportTableTest : public unit::GpuTest {
 protected:
  void SetUp() override {
    unit::GpuTest::SetUp();
    Result<std::unique_ptr<Lanes>> made = Lanes::create(gpu, kernels::kLeastSlab, 1 << 18);
    ASSERT_TRUE(is_ok(made));
    lanes = std::move(*made);
  }
  void TearDown() override {
    lanes.reset();
    unit::GpuTest::TearDown();
  }
  ImportTable& table() { return lanes->imports(); }

  std::unique_ptr<Lanes> lanes;
};

// No sender holds a lane, so one look is enough.
TEST_F(ImportTableTest, MemoryIsReleasedAfterNoSenderUsesIt) {
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = memory;
  table().add({7, 4096, 0x1000}, std::move(memory));
  EXPECT_TRUE(table().settle(/*lost=*/false));
  EXPECT_FALSE(alive.expired());
  table().remove(7);
  EXPECT_FALSE(alive.expired());
  EXPECT_TRUE(unit::eventually([this] { return table().settle(/*lost=*/false); }));
  EXPECT_TRUE(alive.expired());
}

// A sender looks at nothing while it puts, so a half that fails meanwhile is still its own.
TEST_F(ImportTableTest, AHalfThatFailsIsStillItsHolders) {
  using namespace onehop::detail;
  ASSERT_TRUE(unit::eventually([this] {
    Result<bool> open = lanes->is_open();
    return open.ok() && *open;
  }));
  constexpr uint32_t kLane = 3;
  const uint64_t at = lanes->slab()->address() +
                      kernels::lane_place(lanes->slab()->bytes(), kLane).memory +
                      offsetof(LaneMemory, tx.state);
  auto set_state = [&](uint64_t value) {
    Bytes bytes(sizeof(value));
    std::memcpy(bytes.data(), &value, sizeof(value));
    ASSERT_TRUE(fake.write(at, bytes));
  };
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = memory;
  table().add({7, 4096, 0x1000}, std::move(memory));
  set_state(make_state(1, 77) | kBusy);
  table().remove(7);
  auto look = [this] {
    for (int i = 0; i < 100; ++i) {
      (void)table().settle(/*lost=*/false);
      usleep(500);
    }
  };
  look();
  EXPECT_FALSE(alive.expired());
  ASSERT_TRUE(is_ok(lanes->commands().step(kLane, kernels::LanesStep::kStop, 0)));
  look();
  EXPECT_FALSE(alive.expired());
  set_state(make_state(1, 77) | kFailed);
  EXPECT_TRUE(unit::eventually([this] { return table().settle(/*lost=*/false); }));
  EXPECT_TRUE(alive.expired());
}

TEST_F(ImportTableTest, RemovingWhatIsNotThereDoesNothing) {
  table().remove(7);
  EXPECT_TRUE(table().settle(/*lost=*/false));
}

}  // namespace
}  // namespace import_table_test
