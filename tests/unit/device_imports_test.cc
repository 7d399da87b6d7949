// SPDX-License-Identifier: Apache-2.0
//
// The table of mapped memory, while a place of it goes from one region to another.
#include <cstddef>

#include "onehop/detail/posting.h"
#include "unit/device_protocol.h"

namespace {

using namespace unit;

// Their places are the same.
constexpr uint64_t kMask = 7;
constexpr uint32_t kOld = 3;
constexpr uint32_t kNew = 11;
constexpr uint64_t kOldBase = 0x10000;
constexpr uint64_t kNewBase = 0x2000000;
constexpr uint64_t kSize = 4096;
constexpr uint64_t kOffset = 64;

struct Table {
  Table() {
    table()->shift = 3;
    write_import<HostAtomics>(entry(), kOld, kSize, kOldBase);
  }
  ImportTable* table() { return reinterpret_cast<ImportTable*>(words); }
  ImportEntry* entry() { return &table()->entries[kOld & kMask]; }
  oh_lane_handle lane() {
    oh_lane_handle lane{};
    lane.imports = reinterpret_cast<uint64_t>(words);
    return lane;
  }
  template <typename A>
  uint64_t find(uint32_t region) {
    const oh_lane_handle here = lane();
    return find_import<A>(here, import_mask<A>(here), {region, kOffset}, kSize - kOffset);
  }
  template <typename A>
  void reuse() {
    write_import<A>(entry(), kNew, 2 * kSize, kNewBase);
  }

  alignas(64) uint64_t words[8 + 4 * (kMask + 1)] = {};
};
static_assert(offsetof(ImportTable, entries) == 64 && sizeof(ImportEntry) == 32);

// Before the n-th access something else happens.
struct Interrupt {
  static inline int left = 0;
  static inline std::function<void()> act;
  void operator()() const {
    if (--left == 0) act();
  }
};
using Interrupted = BasicHostAtomics<Interrupt>;

TEST(DeviceImportsTest, APlaceThatIsReusedWhileItIsReadIsNeverTheWrongRegion) {
  int found = 0;
  for (int access = 1; access <= 8; ++access) {
    Table table;
    Interrupt::left = access;
    Interrupt::act = [&] { table.reuse<HostAtomics>(); };
    const uint64_t base = table.find<Interrupted>(kOld);
    EXPECT_TRUE(base == 0 || base == kOldBase + kOffset) << "access " << access << ": " << base;
    found += base != 0;
  }
  EXPECT_GT(found, 0) << "what changes behind the last access";
  EXPECT_LT(found, 8);
}

TEST(DeviceImportsTest, NobodyFindsAnEntryThatIsNotWhole) {
  for (int access = 1; access <= 6; ++access) {
    Table table;
    Interrupt::left = access;
    Interrupt::act = [&] {
      const uint64_t old = table.find<HostAtomics>(kOld);
      EXPECT_TRUE(old == 0 || old == kOldBase + kOffset) << "access " << access << ": " << old;
      const uint64_t next = table.find<HostAtomics>(kNew);
      EXPECT_TRUE(next == 0 || next == kNewBase + kOffset) << "access " << access << ": " << next;
    };
    table.reuse<Interrupted>();
    EXPECT_EQ(table.find<HostAtomics>(kOld), 0u);
    EXPECT_EQ(table.find<HostAtomics>(kNew), kNewBase + kOffset);
  }
}

TEST(DeviceImportsTest, SeveralLookWhileItChanges) {
  for (int round = 0; round < 300; ++round) {
    Table table;
    Threads threads;
    for (int i = 0; i < 2; ++i) {
      threads.start([&table] {
        uint64_t next = 0;
        while (next == 0) {
          const uint64_t old = table.find<Delayed>(kOld);
          ASSERT_TRUE(old == 0 || old == kOldBase + kOffset) << old;
          next = table.find<Delayed>(kNew);
          ASSERT_TRUE(next == 0 || next == kNewBase + kOffset) << next;
          std::this_thread::yield();
        }
      });
    }
    table.reuse<Delayed>();
  }
}

TEST(DeviceTargetsTest, WhatIsNotAllWithinIsNowhere) {
  std::vector<uint8_t> memory(1'000);
  const oh_lane_target target{reinterpret_cast<uint64_t>(&memory[100]), 500, 4'096, 7, 0};
  for (uint64_t begin : {100, 101, 599, 600}) {
    const Place place = place_in(target, &memory[begin], 600 - begin);
    EXPECT_EQ(place.region, 7u) << begin;
    EXPECT_EQ(place.offset, 4'096 + begin - 100);
    EXPECT_EQ(place_in(target, &memory[begin], 601 - begin).region, 0u) << begin;
  }
  EXPECT_EQ(place_in(target, &memory[99], 1).region, 0u);
  EXPECT_EQ(place_in({}, &memory[100], 1).region, 0u);
}

}  // namespace
