// SPDX-License-Identifier: Apache-2.0
//
// The import table of a Lanes on the fake GPU.
#include "lane/import_table.h"

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <vector>

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
    // Afterwards the slab is zero: no earlier work writes to it.
    ASSERT_TRUE(unit::eventually([this] {
      Result<bool> open = lanes->is_open();
      return open.ok() && *open;
    }));
  }
  void TearDown() override {
    lanes.reset();
    unit::GpuTest::TearDown();
  }
  ImportTable& table() { return lanes->imports(); }
  // The regions that kernels find in the table.
  std::vector<uint64_t> numbers() const {
    const uint64_t entries = lanes->slab()->address() + kernels::kImportsAt +
                             offsetof(onehop::detail::ImportTable, entries);
    const size_t count = size_t{1} << kernels::kImportShift;
    const Bytes bytes = fake.bytes_at(entries, count * sizeof(onehop::detail::ImportEntry));
    std::vector<onehop::detail::ImportEntry> all(count);
    std::memcpy(all.data(), bytes.data(), bytes.size());
    std::vector<uint64_t> found;
    for (const auto& entry : all) {
      if (entry.size.high != 0) found.push_back(entry.size.high);
    }
    return found;
  }

  std::unique_ptr<Lanes> lanes;
};

// No sender holds a lane, so one check suffices.
TEST_F(ImportTableTest, MemoryIsReleasedAfterNoSenderUsesIt) {
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = memory;
  EXPECT_FALSE(table().has(7));
  EXPECT_TRUE(table().add({7, 4096, 0x1000}, std::move(memory)));
  EXPECT_TRUE(table().has(7));
  EXPECT_TRUE(table().add({7, 4096, 0x1000}, nullptr)) << "it is there";
  EXPECT_TRUE(table().settle(/*lost=*/false));
  EXPECT_FALSE(alive.expired());
  table().remove(7);
  EXPECT_FALSE(table().has(7));
  EXPECT_FALSE(alive.expired());
  EXPECT_TRUE(unit::eventually([this] { return table().settle(/*lost=*/false); }));
  EXPECT_TRUE(alive.expired());
}

// A sender checks nothing while it puts, so a half that fails meanwhile still belongs to it.
TEST_F(ImportTableTest, AHalfThatFailsIsStillItsHolders) {
  using namespace onehop::detail;
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

// Another user may temporarily hold the memory that a launch needs.
TEST_F(ImportTableTest, WhatCouldNotBeWrittenIsWrittenBeforeMemoryIsReleased) {
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = memory;
  table().add({7, 4096, 0x1000}, std::move(memory));
  EXPECT_TRUE(unit::eventually([this] { return numbers() == std::vector<uint64_t>{7}; }));
  ASSERT_EQ(fake.fail("cuLaunchKernelEx", 0, cuda::kOutOfMemory), 0);
  table().remove(7);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(table().settle(/*lost=*/false));
  table().add({8, 4096, 0x2000}, nullptr);
  fake.clear_failures();
  EXPECT_TRUE(unit::eventually([this] { return table().settle(/*lost=*/false); }));
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(numbers(), std::vector<uint64_t>{8});
}

// The GPU reports no senders any more, and none runs.
TEST_F(ImportTableTest, OnALostGpuAllIsReleased) {
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = memory;
  table().add({7, 4096, 0x1000}, std::move(memory));
  table().remove(7);
  EXPECT_TRUE(table().settle(/*lost=*/true));
  EXPECT_TRUE(alive.expired());
}

TEST_F(ImportTableTest, RemovingWhatIsNotThereDoesNothing) {
  table().remove(7);
  EXPECT_TRUE(table().settle(/*lost=*/false));
}

}  // namespace
}  // namespace import_table_test
