// SPDX-License-Identifier: Apache-2.0
//
// The import table while an entry is reused for another region.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/stream.h"
#include "unit/device_lanes.h"

namespace device_imports_test {
namespace {

using namespace unit;

// All of them hash to the same entry.
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

// Runs other work before the n-th access.
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

// Both sides' slabs; lane 1, and messages of more than 8 bytes are large.
class Slabs {
 public:
  static constexpr uint32_t kLane = 1;
  Slabs() {
    for (int side : {0, 1}) {
      step(oh::kernels::LanesStep::kBegin, side);
      step(oh::kernels::LanesStep::kOpen, side);
    }
  }
  oh_lane_handle handle(int side) {
    const oh::kernels::LanePlace place = oh::kernels::lane_place(oh::kernels::kLeastSlab, kLane);
    oh_lane_handle handle{};
    handle.layout = OH_LANE_LAYOUT;
    handle.lane = kLane;
    handle.ring_shift = place.ring_shift;
    handle.lines_at = place.lines - place.memory;
    handle.chunks_at = place.chunks - place.memory;
    handle.mine = at(side, place.memory);
    handle.theirs = at(1 - side, place.memory);
    handle.chunk_slots = place.chunk_slots;
    handle.chunk_shift = place.chunk_shift;
    handle.notice = reinterpret_cast<uint64_t>(&notices_[side]);
    handle.imports = at(side, oh::kernels::kImportsAt);
    handle.timeout_ns = uint64_t{100} * 1000 * 1000 * 1000;
    handle.small_max = 8;
    return handle;
  }
  // Runs a step as a kernel of the host's stream does; returns the previous state of its lane's
  // sending half.
  uint64_t step(oh::kernels::LanesStep which, int side) {
    oh::kernels::LanesAnswer answers[OH_LANES] = {};
    oh::kernels::LanesArgs args{};
    args.slab = at(side, 0);
    args.slab_bytes = oh::kernels::kLeastSlab;
    args.answers = answers;
    args.serial = 1;
    args.epoch = 1;
    args.step = which;
    Alone alone;
    oh::kernels::run_lanes<Delayed>(args, kLane, alone.group);
    return answers[kLane].states[0];
  }
  void write(int side, uint32_t place, uint64_t number, uint64_t size, const void* base) {
    ImportTable* table = reinterpret_cast<ImportTable*>(at(side, oh::kernels::kImportsAt));
    write_import<Delayed>(&table->entries[place], number, size, reinterpret_cast<uint64_t>(base));
  }

 private:
  struct Freed {
    void operator()(void* memory) const { free(memory); }
  };
  static std::unique_ptr<uint8_t, Freed> make() {
    void* memory = aligned_alloc(4096, oh::kernels::kLeastSlab);
    memset(memory, 0, oh::kernels::kLeastSlab);
    return std::unique_ptr<uint8_t, Freed>(static_cast<uint8_t*>(memory));
  }
  uint64_t at(int side, uint64_t offset) {
    return reinterpret_cast<uint64_t>(slabs_[side].get() + offset);
  }
  std::unique_ptr<uint8_t, Freed> slabs_[2] = {make(), make()};
  LaneNotice notices_[2] = {};
};

// A mapping is removed while a sender repeatedly puts into it: all puts complete before.
// (ThreadSanitizer and AddressSanitizer detect a put that does not.)
TEST(DeviceImportsTest, AMappingGoesBehindTheLastByteThatWasPutThere) {
  constexpr uint64_t kBytes = 100;
  constexpr int kMappings = 100;
  Slabs slabs;
  std::atomic<bool> over{false};
  std::atomic<uint64_t> sent{0};
  Threads threads;
  threads.start([&] {
    Alone alone;
    const oh::Bytes bytes = Random(1).bytes(kBytes);
    const oh_lane_handle lane = slabs.handle(0);
    while (!over.load(std::memory_order_relaxed)) {
      Sender<Delayed> sender(lane, alone.group);
      ASSERT_TRUE(sender.take_early(alone.group, kBytes));
      sender.send(alone.group, bytes.data(), kBytes, true);
      ASSERT_EQ(sender.give(alone.group), OH_LANE_OK);
      sent.fetch_add(1, std::memory_order_relaxed);
    }
    Sender<Delayed> sender(lane, alone.group);
    ASSERT_TRUE(sender.take(alone.group));
    sender.send(alone.group, bytes.data(), 0);
    sender.give(alone.group);
  });
  threads.start([&] {
    Alone alone;
    oh::Bytes target(kBytes);
    const oh_lane_handle lane = slabs.handle(1);
    uint64_t length = 1;
    while (length != 0) {
      Receiver<Delayed> receiver(lane, alone.group);
      ASSERT_TRUE(receiver.take(alone.group));
      receiver.receive(alone.group, target.data(), kBytes, {kOld, 0});
      ASSERT_EQ(receiver.give(alone.group), OH_LANE_OK);
      length = receiver.length;
    }
  });
  uint64_t put_before = 0;
  const uint64_t* put = &mine(slabs.handle(0))->tx.put;
  for (int i = 0; i < kMappings; ++i) {
    auto mapping = std::make_unique<oh::Bytes>(kBytes);
    slabs.write(0, kOld, kOld, kBytes, mapping->data());
    wait_until([&] { return HostAtomics::load_relaxed(put) != put_before; });
    slabs.write(0, kOld, 0, 0, nullptr);
    const uint64_t first = slabs.step(oh::kernels::LanesStep::kLook, 0);
    wait_until([&] {
      const uint64_t state = slabs.step(oh::kernels::LanesStep::kLook, 0);
      return (first & kBusy) == 0 || (state & kBusy) == 0 || state != first;
    });
    put_before = HostAtomics::load_relaxed(put);
    std::fill(mapping->begin(), mapping->end(), uint8_t{0});
  }
  over.store(true, std::memory_order_relaxed);
  EXPECT_GT(sent.load(), uint64_t{kMappings} / 2);
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
}  // namespace device_imports_test
