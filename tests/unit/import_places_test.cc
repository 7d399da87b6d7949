// SPDX-License-Identifier: Apache-2.0
//
// The entries of regions in the table that kernels read, while thousands of regions come and go.
#include "lane/import_places.h"

#include <algorithm>
#include <atomic>

#include "onehop/detail/posting.h"
#include "unit/device_protocol.h"

namespace import_places_test {
namespace {

using namespace unit;
using oh::ImportPlaces;

constexpr uint32_t kShift = 9;
constexpr uint64_t kPlaces = uint64_t{1} << kShift;
constexpr size_t kMostImports = 384;
constexpr uint64_t kSize = 4096;

struct Count {
  static inline uint64_t accesses = 0;
  void operator()() const { ++accesses; }
};
using Counted = BasicHostAtomics<Count>;

// The host's copy, and the table as kernels see it.
class Table {
 public:
  Table() { table()->shift = kShift; }

  bool add(uint64_t number) {
    const std::optional<ImportPlaces::Write> write = places_.add({number, kSize, base_of(number)});
    if (write) apply(*write);
    return write.has_value();
  }
  size_t remove(uint64_t number) {
    const std::vector<ImportPlaces::Write> writes = places_.remove(number);
    for (const ImportPlaces::Write& write : writes) {
      apply(write);
      EXPECT_EQ(find(number), 0u) << "it is gone with the first write";
    }
    return writes.size();
  }
  template <typename A = HostAtomics>
  uint64_t find(uint64_t number) {
    oh_lane_handle lane{};
    lane.imports = reinterpret_cast<uint64_t>(words_);
    return find_import<A>(lane, import_mask<A>(lane), {static_cast<uint32_t>(number), 0}, kSize);
  }
  static uint64_t base_of(uint64_t number) { return number << 20; }

 private:
  ImportTable* table() { return reinterpret_cast<ImportTable*>(words_); }
  void apply(const ImportPlaces::Write& write) {
    write_import<HostAtomics>(&table()->entries[write.place], write.entry.number, write.entry.size,
                              write.entry.base);
  }

  ImportPlaces places_{kShift};
  alignas(64) uint64_t words_[8 + 4 * kPlaces] = {};
};

// Accesses of a look-up that checks `entries` entries, on the host; plus one for the table's size.
constexpr uint64_t accesses_of(uint64_t entries) { return 6 * entries + 1; }

uint64_t accesses_to_miss(Table& table, uint64_t number) {
  Count::accesses = 0;
  EXPECT_EQ(table.find<Counted>(number), 0u);
  return Count::accesses;
}

// As exports are numbered: consecutively, and the oldest is removed first.
TEST(ImportPlacesTest, ALookUpStaysShortAfterThousandsHaveGone) {
  constexpr uint64_t kLive = 100;
  Table table;
  for (uint64_t number = 2; number < 5'000; ++number) {
    ASSERT_TRUE(table.add(number));
    if (number >= 2 + kLive) {
      ASSERT_EQ(table.remove(number - kLive), 1u);
    }
  }
  for (uint64_t number = 4'900; number < 5'000; ++number) {
    ASSERT_EQ(table.find(number), Table::base_of(number));
  }
  // None of them is in the table, and each entry has been used.
  for (uint64_t number = 10'000; number < 10'000 + kPlaces; ++number) {
    const uint64_t place = number & (kPlaces - 1);
    const bool taken = place >= (4'900 & (kPlaces - 1)) || place < (5'000 & (kPlaces - 1));
    if (taken) continue;
    ASSERT_LE(accesses_to_miss(table, number), accesses_of(1)) << place;
  }
}

TEST(ImportPlacesTest, AnyOrderOfComingAndGoing) {
  Random random(1);
  for (size_t most : {size_t{20}, size_t{200}, kMostImports}) {
    Table table;
    std::vector<uint64_t> live;
    size_t left_out = 0;
    for (int step = 0; step < 4'000; ++step) {
      if (live.size() < most && random.below(3) != 0) {
        const uint64_t number = 2 + random.below(1'000'000);
        if (std::count(live.begin(), live.end(), number) != 0) continue;
        if (table.add(number)) {
          live.push_back(number);
        } else {
          ++left_out;
        }
      } else if (!live.empty()) {
        const size_t at = random.below(live.size());
        EXPECT_GE(table.remove(live[at]), 1u);
        EXPECT_EQ(table.find(live[at]), 0u);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      }
      if (step % 50 != 0) continue;
      for (uint64_t number : live) ASSERT_EQ(table.find(number), Table::base_of(number));
    }
    EXPECT_LT(left_out, 40u) << most;
    for (uint64_t number = 2'000'000; number < 2'000'000 + kPlaces; ++number) {
      ASSERT_LE(accesses_to_miss(table, number), accesses_of(kMostLooks));
    }
  }
}

// All hash to one entry: those beyond a look-up's reach are left out, and are added when others are
// removed.
TEST(ImportPlacesTest, NoneLiesBeyondTheReachOfALookUp) {
  Table table;
  auto number = [](uint64_t i) { return 7 + i * kPlaces; };
  for (uint64_t i = 0; i < kMostLooks; ++i) ASSERT_TRUE(table.add(number(i)));
  EXPECT_FALSE(table.add(number(kMostLooks)));
  EXPECT_EQ(table.find(number(kMostLooks)), 0u);
  EXPECT_EQ(table.find(number(kMostLooks - 1)), Table::base_of(number(kMostLooks - 1)));
  // All entries behind it move up by one.
  EXPECT_EQ(table.remove(number(0)), kMostLooks);
  EXPECT_TRUE(table.add(number(kMostLooks)));
  for (uint64_t i = 1; i <= kMostLooks; ++i) {
    EXPECT_EQ(table.find(number(i)), Table::base_of(number(i)));
  }
}

TEST(ImportPlacesTest, WhatIsKnownIsNotAddedAndWhatIsNotIsNotRemoved) {
  ImportPlaces places(3);
  const std::optional<ImportPlaces::Write> write = places.add({6, 1, 2});
  ASSERT_TRUE(write.has_value());
  EXPECT_EQ(write->place, 6u);
  EXPECT_FALSE(places.add({6, 1, 2}).has_value());
  EXPECT_EQ(places.add({14, 1, 2})->place, 7u);
  EXPECT_EQ(places.add({22, 1, 2})->place, 0u) << "behind the end of the table";
  EXPECT_TRUE(places.remove(30).empty());
  // An entry at its own hash position does not move.
  EXPECT_EQ(places.add({1, 1, 2})->place, 1u);
  const std::vector<ImportPlaces::Write> writes = places.remove(6);
  ASSERT_EQ(writes.size(), 3u);
  EXPECT_EQ(writes[0].place, 6u);
  EXPECT_EQ(writes[0].entry.number, 14u);
  EXPECT_EQ(writes[1].place, 7u);
  EXPECT_EQ(writes[1].entry.number, 22u);
  EXPECT_EQ(writes[2].place, 0u);
  EXPECT_EQ(writes[2].entry.number, 0u);
}

// While entries move, a look-up finds the right entry or none.
TEST(ImportPlacesTest, SeveralLookWhileEntriesMove) {
  Table table;
  auto number = [](uint64_t i) { return 3 + i * kPlaces; };
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(table.add(number(i)));
  std::atomic<bool> over{false};
  Threads threads;
  for (int i = 0; i < 2; ++i) {
    threads.start([&] {
      while (!over.load()) {
        for (uint64_t each = 0; each < 8; ++each) {
          const uint64_t base = table.find<Delayed>(number(each));
          ASSERT_TRUE(base == 0 || base == Table::base_of(number(each))) << base;
        }
        std::this_thread::yield();
      }
    });
  }
  for (int round = 0; round < 200; ++round) {
    for (uint64_t i = 0; i < 8; ++i) {
      EXPECT_GE(table.remove(number(i)), 1u);
      EXPECT_TRUE(table.add(number(i)));
    }
  }
  over.store(true);
}

}  // namespace
}  // namespace import_places_test
