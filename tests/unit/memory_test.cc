// SPDX-License-Identifier: Apache-2.0
//
// Export records, the shared heap, imports and the control page.
#include <errno.h>

#include <memory>
#include <thread>

#include "memory/control_page.h"
#include "memory/export_record.h"
#include "memory/import_cache.h"
#include "memory/shared_heap.h"
#include "unit/faulty_os.h"
#include "unit/support.h"

namespace memory_test {
namespace {

using namespace oh;
using unit::Call;
using unit::fails_with;
using unit::FaultyOs;
using unit::is_ok;

// ---- Export records ---------------------------------------------------------------------------

ExportRecord sample_record() {
  ExportRecord record;
  record.base = 0x7000;
  record.length = 300;
  record.gpu.bytes[15] = 7;
  record.chunks.push_back({0, 100, ChunkKind::kPrivate, {}});
  record.chunks.push_back({100, 200, ChunkKind::kShared, {1, 2, 3, 4}});
  return record;
}

Bytes encoded(const ExportRecord& record) {
  Bytes bytes;
  Writer writer(bytes);
  record.encode(writer);
  return bytes;
}

Result<ExportRecord> decoded(ByteView bytes) {
  Reader reader(bytes);
  return ExportRecord::decode(reader);
}

TEST(ExportRecordTest, GoesRound) {
  Result<ExportRecord> record = decoded(encoded(sample_record()));
  ASSERT_TRUE(is_ok(record));
  EXPECT_EQ(record->base, 0x7000u);
  EXPECT_EQ(record->length, 300u);
  EXPECT_EQ(record->gpu.bytes[15], 7);
  ASSERT_EQ(record->chunks.size(), 2u);
  EXPECT_EQ(record->chunks[1].offset, 100u);
  EXPECT_EQ(record->chunks[1].length, 200u);
  EXPECT_EQ(record->chunks[1].kind, ChunkKind::kShared);
  EXPECT_EQ(record->chunks[1].handle, (Bytes{1, 2, 3, 4}));
  EXPECT_EQ(encoded(*record), encoded(sample_record()));
}

TEST(ExportRecordTest, CutOffAnywhereIsRefused) {
  Bytes bytes = encoded(sample_record());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(fails_with(decoded(ByteView(bytes).first(size)), OH_ERR_PROTOCOL)) << size;
  }
}

TEST(ExportRecordTest, ChunksMustCoverItExactly) {
  auto refused = [](auto change) {
    ExportRecord record = sample_record();
    change(record);
    return fails_with(decoded(encoded(record)), OH_ERR_PROTOCOL);
  };
  EXPECT_TRUE(refused([](auto& r) { r.chunks[1].offset = 101; }));  // a gap
  EXPECT_TRUE(refused([](auto& r) { r.chunks[1].offset = 99; }));   // an overlap
  EXPECT_TRUE(refused([](auto& r) { r.chunks[1].length = 199; }));
  EXPECT_TRUE(refused([](auto& r) { r.chunks[1].length = 201; }));
  EXPECT_TRUE(refused([](auto& r) { r.chunks[1].length = UINT64_MAX; }));
  EXPECT_TRUE(refused([](auto& r) { r.chunks[0].length = 0; }));
  EXPECT_TRUE(refused([](auto& r) { std::swap(r.chunks[0], r.chunks[1]); }));
  EXPECT_TRUE(refused([](auto& r) { r.chunks.pop_back(); }));
  EXPECT_TRUE(refused([](auto& r) { r.chunks.push_back({300, 1, ChunkKind::kPrivate, {}}); }));
  EXPECT_TRUE(refused([](auto& r) { r.chunks[0].kind = static_cast<ChunkKind>(7); }));
  EXPECT_TRUE(refused([](auto& r) { r.chunks[0].kind = static_cast<ChunkKind>(0); }));
  EXPECT_TRUE(refused([](auto& r) { r.chunks[0].handle.resize(ExportRecord::kMaxHandle + 1); }));
  EXPECT_TRUE(refused([](auto& r) { r.base = UINT64_MAX - 299; }));  // exceeds the address space
  EXPECT_TRUE(refused([](auto& r) { r.length = 0; }));
}

TEST(ExportRecordTest, ARecordOfFarTooManyChunksIsRefusedBeforeAnythingIsAllocated) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u64(0);
  writer.u64(UINT64_MAX);
  writer.raw(Bytes(16));
  writer.u32(UINT32_MAX);
  EXPECT_TRUE(fails_with(decoded(bytes), OH_ERR_PROTOCOL, "4294967295 chunks"));
}

// ---- Shared blocks ----------------------------------------------------------------------------

TEST(SharedHeapTest, FindsWhatLiesWithinABlock) {
  SharedHeap& heap = SharedHeap::instance();
  EXPECT_TRUE(heap.empty());
  Result<std::shared_ptr<SharedBlock>> made = heap.allocate(10000);
  ASSERT_TRUE(is_ok(made));
  std::shared_ptr<SharedBlock> block = *made;
  uint8_t* data = block->mapping.data();
  EXPECT_EQ(block->size(), 10000u);
  EXPECT_NE(block->number, 0u);
  EXPECT_EQ(heap.find(data, 10000), block);
  EXPECT_EQ(heap.find(data + 9999, 1), block);
  EXPECT_EQ(heap.find(data + 1, 9999), block);
  EXPECT_EQ(heap.find(data, 10001), nullptr);
  EXPECT_EQ(heap.find(data + 1, 10000), nullptr);
  EXPECT_EQ(heap.find(data + 10000, 0), nullptr);
  EXPECT_EQ(heap.find(data - 1, 1), nullptr);
  EXPECT_EQ(heap.find(data, UINT64_MAX), nullptr);
  int local = 0;
  EXPECT_EQ(heap.find(&local, sizeof(local)), nullptr);
  EXPECT_EQ(heap.find(block->number), block);
  EXPECT_EQ(heap.find(block->number + 1), nullptr);
  EXPECT_TRUE(is_ok(heap.free(data)));
  EXPECT_EQ(heap.find(block->number), nullptr);
  EXPECT_TRUE(heap.empty());
  // Its memory lives as long as its last reference.
  data[9999] = 1;
}

TEST(SharedHeapTest, RefusesToFreeWhatIsNoBlock) {
  SharedHeap& heap = SharedHeap::instance();
  Result<std::shared_ptr<SharedBlock>> block = heap.allocate(4096);
  ASSERT_TRUE(is_ok(block));
  void* data = (*block)->mapping.data();
  int local = 0;
  EXPECT_TRUE(fails_with(heap.free(&local), OH_ERR_INVALID, "not the start of a shared block"));
  EXPECT_TRUE(fails_with(heap.free(static_cast<uint8_t*>(data) + 1), OH_ERR_INVALID));
  EXPECT_TRUE(fails_with(heap.free(nullptr), OH_ERR_INVALID));
  EXPECT_TRUE(is_ok(heap.free(data)));
  EXPECT_TRUE(fails_with(heap.free(data), OH_ERR_INVALID));
}

TEST(SharedHeapTest, NumbersAreNeverUsedAgainAndListenersHearOfTheEnd) {
  SharedHeap& heap = SharedHeap::instance();
  std::vector<uint32_t> freed;
  heap.add_listener(&freed, [&](uint32_t number) { freed.push_back(number); });
  std::vector<uint32_t> made;
  for (int i = 0; i < 5; ++i) {
    Result<std::shared_ptr<SharedBlock>> block = heap.allocate(0);
    ASSERT_TRUE(is_ok(block));
    made.push_back((*block)->number);
    ASSERT_TRUE(is_ok(heap.free((*block)->mapping.data())));
  }
  heap.remove_listener(&freed);
  EXPECT_EQ(freed, made);
  EXPECT_TRUE(std::is_sorted(made.begin(), made.end(), std::less_equal<>()));
  Result<std::shared_ptr<SharedBlock>> block = heap.allocate(1);
  ASSERT_TRUE(is_ok(heap.free((*block)->mapping.data())));
  EXPECT_EQ(freed.size(), 5u);
}

TEST(SharedHeapTest, AFailureLeavesNothingBehind) {
  SharedHeap& heap = SharedHeap::instance();
  FaultyOs faulty;
  size_t before = unit::open_fds();
  for (Call call :
       {Call::memfd_create, Call::ftruncate, Call::seal, Call::fstat_size, Call::mmap}) {
    faulty.arm(call, 0, ENOMEM);
    const oh_status code = call == Call::ftruncate ? OH_ERR_NO_RESOURCE : OH_ERR_SYSTEM;
    EXPECT_TRUE(fails_with(heap.allocate(4096), code, "ENOMEM")) << call_name(call);
    EXPECT_TRUE(heap.empty());
  }
  EXPECT_FALSE(heap.allocate(UINT64_MAX / 2).ok());
  EXPECT_EQ(unit::open_fds(), before);
}

TEST(SharedHeapTest, ThreadsAllocateFindAndFree) {
  SharedHeap& heap = SharedHeap::instance();
  unit::Threads threads;
  for (int i = 0; i < 4; ++i) {
    threads.start([&heap, i] {
      for (int round = 0; round < 50; ++round) {
        Result<std::shared_ptr<SharedBlock>> block = heap.allocate(4096);
        ASSERT_TRUE(is_ok(block));
        uint8_t* data = (*block)->mapping.data();
        data[100] = static_cast<uint8_t>(i);
        EXPECT_EQ(heap.find(data + 100, 8), *block);
        EXPECT_EQ(data[100], i);
        EXPECT_TRUE(is_ok(heap.free(data)));
      }
    });
  }
  threads.join();
  EXPECT_TRUE(heap.empty());
}

// ---- Imports ----------------------------------------------------------------------------------

TEST(ImportCacheTest, MapsABlockOnceAndLetsGoOfItWithItsLastUser) {
  ImportCache& cache = ImportCache::instance();
  size_t before = cache.size();
  Result<UniqueFd> fd = make_memfd("unit", 8192);
  ASSERT_TRUE(is_ok(fd));
  Id owner{};
  owner[0] = 1;
  auto first = cache.open(owner, 5, 0x10000, 8192, fd->get());
  auto second = cache.open(owner, 5, 0x10000, 8192, fd->get());
  auto other = cache.open(owner, 6, 0x10000, 8192, fd->get());
  ASSERT_TRUE(is_ok(first));
  EXPECT_EQ(*first, *second);
  EXPECT_NE(*first, *other);
  EXPECT_EQ(cache.size(), before + 2);
  first = second;
  second = other;
  first = other;
  EXPECT_EQ(cache.size(), before + 1);
  auto again = cache.open(owner, 5, 0x10000, 8192, fd->get());
  EXPECT_TRUE(is_ok(again));
}

TEST(ImportCacheTest, AFailedImportIsNotRemembered) {
  ImportCache& cache = ImportCache::instance();
  size_t before = cache.size();
  Result<UniqueFd> fd = make_memfd("unit", 4096);
  ASSERT_TRUE(is_ok(fd));
  Id owner{};
  owner[0] = 2;
  EXPECT_TRUE(fails_with(cache.open(owner, 1, 0, 8192, fd->get()), OH_ERR_PROTOCOL));
  EXPECT_FALSE(cache.open(owner, 1, 0, 0, fd->get()).ok());
  EXPECT_EQ(cache.size(), before);
  EXPECT_TRUE(is_ok(cache.open(owner, 1, 0, 4096, fd->get())));
}

TEST(ImportCacheTest, TranslatesExactlyTheBytesOfTheBlock) {
  Result<UniqueFd> fd = make_memfd("unit", 8192);
  ASSERT_TRUE(is_ok(fd));
  Id owner{};
  owner[0] = 3;
  auto opened = ImportCache::instance().open(owner, 1, 0x10000, 8192, fd->get());
  ASSERT_TRUE(is_ok(opened));
  const ImportedBlock& block = **opened;
  uint8_t* data = block.local_base;
  EXPECT_EQ(block.translate(0x10000, 8192), data);
  EXPECT_EQ(block.translate(0x10000 + 8191, 1), data + 8191);
  EXPECT_EQ(block.translate(0x10000 + 8192, 0), data + 8192);
  EXPECT_EQ(block.translate(0x10000 - 1, 1), nullptr);
  EXPECT_EQ(block.translate(0x10000, 8193), nullptr);
  EXPECT_EQ(block.translate(0x10001, 8192), nullptr);
  EXPECT_EQ(block.translate(0x10000 + 8193, 0), nullptr);
  EXPECT_EQ(block.translate(0x10000, UINT64_MAX), nullptr);
  EXPECT_EQ(block.translate(UINT64_MAX, 2), nullptr);
  EXPECT_EQ(block.translate(0, 1), nullptr);
}

// ---- The control page --------------------------------------------------------------------------

TEST(ControlPageTest, BothSidesSeeTheSame) {
  Result<ControlPage> mine = ControlPage::create();
  ASSERT_TRUE(is_ok(mine));
  Result<ControlPage> theirs = ControlPage::open(UniqueFd(dup(mine->fd())));
  ASSERT_TRUE(is_ok(theirs));
  for (uint32_t index : {0u, 1u, ControlPage::kMaxRegions - 1}) {
    EXPECT_EQ(theirs->region(index).load(), 0u);
    mine->region(index).store(index + 7);
    EXPECT_EQ(theirs->region(index).load(), index + 7);
  }
  theirs->doorbell().sleepers.fetch_add(1);
  EXPECT_EQ(mine->doorbell().sleepers.load(), 1u);
}

TEST(ControlPageTest, AControlPageOfAnotherSizeIsRefused) {
  Result<UniqueFd> small = make_memfd("unit", 4096);
  ASSERT_TRUE(is_ok(small));
  EXPECT_TRUE(fails_with(ControlPage::open(std::move(*small)), OH_ERR_PROTOCOL));
  EXPECT_FALSE(ControlPage::open(UniqueFd()).ok());
}

TEST(DoorbellTest, DoesNotSleepWhereThereIsWork) {
  Doorbell bell{};
  bool asked = false;
  bell.sleep(kSecond * 3600, [&] {
    EXPECT_EQ(bell.sleepers.load(), 1u);
    return asked = true;
  });
  EXPECT_TRUE(asked);
  EXPECT_EQ(bell.sleepers.load(), 0u);
  bell.ring();
  EXPECT_EQ(bell.rings.load(), 0u);  // the peer does not sleep: the bell is not rung
}

TEST(DoorbellTest, SleepEndsAtItsTime) {
  Doorbell bell{};
  int64_t before = now_ns();
  bell.sleep(5 * kMillisecond, [] { return false; });
  EXPECT_GE(now_ns() - before, 4 * kMillisecond);
}

// Work is passed a hundred times; no wake-up may be lost.
TEST(DoorbellTest, NoWakeUpIsLost) {
  Doorbell there{};
  Doorbell back{};
  std::atomic<int> work{0};
  std::atomic<int> done{0};
  constexpr int kRounds = 2000;
  unit::Threads threads;
  threads.start([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (work.load() < round) {
        there.sleep(3600 * kSecond, [&] { return work.load() >= round; });
      }
      done.store(round);
      back.ring();
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    work.store(round);
    there.ring();
    while (done.load() < round) {
      back.sleep(3600 * kSecond, [&] { return done.load() >= round; });
    }
  }
}

}  // namespace
}  // namespace memory_test
