// SPDX-License-Identifier: Apache-2.0
//
// Device memory: classification of pointers, and export.
#include "memory/gpu_memory.h"

#include <unistd.h>

#include "unit/gpu_memory.h"

namespace gpu_memory_test {
namespace {

using namespace oh;
using namespace oh::cuda;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using unit::fails_with;
using unit::GpuMemoryTest;
using unit::is_ok;
using unit::kMiB;
using unit::pointer;
using unit::Vmm;

TEST_F(GpuMemoryTest, ClassifiesEveryKind) {
  const Driver& driver = *fake.driver;
  int local = 0;
  Result<MemoryFacts> host = classify(driver, &local, sizeof(local));
  ASSERT_TRUE(is_ok(host));
  EXPECT_EQ(host->placement, Placement::kHost);
  Enter enter(*gpu);
  void* pinned = nullptr;
  ASSERT_EQ(fake.host_alloc(&pinned, 4096, 0), kSuccess);
  EXPECT_EQ(classify(driver, pinned, 4096)->placement, Placement::kHost);
  ASSERT_EQ(fake.host_free(pinned), kSuccess);
  DevicePtr managed = 0;
  ASSERT_EQ(fake.memory_alloc_managed(&managed, 4096, 1), kSuccess);
  EXPECT_EQ(classify(driver, pointer(managed), 4096)->placement, Placement::kManaged);
  std::shared_ptr<const GpuExport> none = exported(managed, 4096);
  ASSERT_TRUE(none);
  EXPECT_THAT(none->why_not, HasSubstr("managed"));
  free(managed);
  DevicePtr memory = allocate(8192);
  uint64_t queries = calls("cuPointerGetAttributes");
  Result<MemoryFacts> device = classify(driver, pointer(memory + 100), 8092);
  EXPECT_EQ(calls("cuPointerGetAttributes"), queries + 1);
  ASSERT_TRUE(is_ok(device));
  EXPECT_EQ(device->placement, Placement::kDevice);
  EXPECT_EQ(device->device, 0);
  EXPECT_NE(device->buffer_id, 0u);
  EXPECT_TRUE(fails_with(classify(driver, pointer(memory + 100), 1 << 30), OH_ERR_FAULT, "beyond"));
  free(memory);
  // The driver does not know the address any more, or knows that it was freed.
  Result<MemoryFacts> freed = classify(driver, pointer(memory), 16);
  EXPECT_TRUE(!freed.ok() || freed->placement == Placement::kHost);
  EXPECT_TRUE(fails_with(exports.find(driver, pointer(memory), 16), OH_ERR_FAULT, "freed"));
}

TEST_F(GpuMemoryTest, ClassifiesVmmMemoryAndItsHoles) {
  Vmm vmm = make_vmm(3, 1);
  EXPECT_EQ(classify(*fake.driver, pointer(vmm.address + 5), 9)->placement, Placement::kDevice);
  Status hole = classify(*fake.driver, pointer(vmm.address + vmm.piece), 16).status();
  EXPECT_TRUE(hole.ok() || hole.code() == OH_ERR_FAULT);
  const std::string where =
      strf("0x%llx", static_cast<unsigned long long>(vmm.address + vmm.piece));
  EXPECT_TRUE(fails_with(exports.find(*fake.driver, pointer(vmm.address), vmm.reserved),
                         OH_ERR_FAULT, where));
  drop(vmm);
}

TEST_F(GpuMemoryTest, InteriorPointersShareOneExport) {
  DevicePtr memory = allocate(kMiB);
  std::shared_ptr<const GpuExport> whole = exported(memory, kMiB);
  ASSERT_TRUE(whole);
  EXPECT_TRUE(whole->mappable()) << whole->why_not;
  EXPECT_NE(whole->number & GpuExports::kNumberBit, 0u);
  EXPECT_EQ(whole->record.base, memory);
  EXPECT_EQ(whole->record.length, kMiB);
  ASSERT_EQ(whole->record.chunks.size(), 1u);
  EXPECT_EQ(whole->record.chunks[0].kind, ChunkKind::kCudaIpc);
  uint64_t handles = calls("cuIpcGetMemHandle");
  EXPECT_EQ(exported(memory + 4096, 100), whole);
  EXPECT_EQ(exported(memory + kMiB - 1, 1), whole);
  EXPECT_EQ(calls("cuIpcGetMemHandle"), handles);
  EXPECT_EQ(exports.find(whole->number), whole);
  EXPECT_EQ(exports.size(), 1u);
  EXPECT_TRUE(fails_with(exports.find(*fake.driver, pointer(memory), 2 * kMiB), OH_ERR_FAULT));
  EXPECT_THAT(exports.retire(pointer(memory + 8), 8), ElementsAre(whole->number));
  EXPECT_EQ(exports.find(whole->number), nullptr);
  free(memory);
}

TEST_F(GpuMemoryTest, MemoryThatWasFreedIsAnotherExport) {
  DevicePtr memory = allocate(kMiB);
  std::shared_ptr<const GpuExport> first = exported(memory, kMiB);
  ASSERT_TRUE(first);
  EXPECT_TRUE(exports.sweep(*fake.driver).empty());
  free(memory);
  DevicePtr again = allocate(kMiB);
  ASSERT_EQ(again, memory) << "the fake driver should use addresses again, as drivers do";
  std::shared_ptr<const GpuExport> second = exported(again, kMiB);
  ASSERT_TRUE(second);
  EXPECT_NE(second->number, first->number);
  EXPECT_EQ(exports.find(first->number), nullptr);
  // find() detects it, and the next sweep reports it.
  EXPECT_THAT(exports.sweep(*fake.driver), ElementsAre(first->number));
  free(again);
  EXPECT_THAT(exports.sweep(*fake.driver), ElementsAre(second->number));
  EXPECT_TRUE(exports.sweep(*fake.driver).empty());
  EXPECT_EQ(exports.size(), 0u);
}

TEST_F(GpuMemoryTest, ThreadsThatExportAtOnceGetOne) {
  for (int round = 0; round < 20; ++round) {
    DevicePtr memory = allocate(kMiB);
    std::vector<std::shared_ptr<const GpuExport>> made(4);
    {
      unit::Threads threads;
      for (auto& one : made) {
        threads.start([&] { one = exported(memory, kMiB); });
      }
    }
    for (auto& one : made) EXPECT_EQ(one, made[0]);
    EXPECT_EQ(exports.size(), 1u);
    EXPECT_EQ(exports.retire(pointer(memory), 1).size(), 1u);
    free(memory);
  }
}

TEST_F(GpuMemoryTest, TheDefaultPoolIsNotMappableAndSaysWhatIs) {
  DevicePtr memory = 0;
  {
    Enter enter(*gpu);
    ASSERT_EQ(fake.alloc_async(&memory, kMiB, nullptr), kSuccess);
    ASSERT_EQ(fake.driver->stream_synchronize(nullptr), kSuccess);
  }
  std::shared_ptr<const GpuExport> there = exported(memory, kMiB);
  ASSERT_TRUE(there);
  EXPECT_FALSE(there->mappable());
  EXPECT_THAT(there->why_not, HasSubstr("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
  EXPECT_EQ(there->record.chunks.at(0).kind, ChunkKind::kCudaPrivate);
  EXPECT_EQ(exported(memory + 8, 8), there);
  EXPECT_TRUE(fails_with(GpuImports::instance().open(gpu, Id{}, there->number, there->record, {}),
                         OH_ERR_NOT_VIABLE, "no handle"));
  Enter enter(*gpu);
  ASSERT_EQ(fake.free_async(memory, nullptr), kSuccess);
  ASSERT_EQ(fake.driver->stream_synchronize(nullptr), kSuccess);
}

TEST_F(GpuMemoryTest, VmmMemoryIsWalkedPieceByPiece) {
  Vmm vmm = make_vmm(5, 5);
  std::shared_ptr<const GpuExport> two = exported(vmm.address + vmm.piece + 7, vmm.piece);
  ASSERT_TRUE(two);
  EXPECT_TRUE(two->mappable()) << two->why_not;
  EXPECT_EQ(two->record.base, vmm.address + vmm.piece);
  EXPECT_EQ(two->record.length, 2 * vmm.piece);
  EXPECT_EQ(two->record.chunks.size(), 2u);
  EXPECT_EQ(two->fds.size(), 2u);
  EXPECT_EQ(two->buffer_ids.size(), 2u);
  EXPECT_EQ(exported(vmm.address + 2 * vmm.piece, 100), two);
  // Its other chunk is remapped: that is detected only when that chunk is used.
  {
    Enter enter(*gpu);
    unmap_piece(vmm, 1);
    map_piece(vmm, 1, kHandleTypePosixFd);
  }
  EXPECT_EQ(exported(vmm.address + 2 * vmm.piece, 100), two);
  std::shared_ptr<const GpuExport> other = exported(vmm.address + vmm.piece, 100);
  ASSERT_TRUE(other);
  EXPECT_NE(other, two);
  EXPECT_THAT(exports.sweep(*fake.driver), ElementsAre(two->number));
  drop(vmm);
}

TEST_F(GpuMemoryTest, VmmMemoryWithoutHandlesIsNotMappable) {
  Vmm vmm = make_vmm(1, 1, 0);
  std::shared_ptr<const GpuExport> there = exported(vmm.address, 16);
  ASSERT_TRUE(there);
  EXPECT_FALSE(there->mappable());
  EXPECT_THAT(there->why_not, HasSubstr("cudaMalloc"));
  drop(vmm);
}

TEST_F(GpuMemoryTest, ARefusedExportSaysWhy) {
  DevicePtr memory = allocate(kMiB);
  ASSERT_EQ(fake.fail("cuIpcGetMemHandle", 1, kInvalidValue), 0);
  std::shared_ptr<const GpuExport> there = exported(memory, 8);
  ASSERT_TRUE(there);
  EXPECT_THAT(there->why_not, HasSubstr("imported from another process"));
  exports.retire(pointer(memory), kMiB);
  ASSERT_EQ(fake.fail("cuIpcGetMemHandle", 1, kIllegalAddress), 0);
  EXPECT_TRUE(fails_with(exports.find(*fake.driver, pointer(memory), 8), OH_ERR_DEVICE));
  free(memory);
}

TEST_F(GpuMemoryTest, AFailedVmmExportLeavesNothing) {
  Vmm vmm = make_vmm(2, 2);
  size_t fds = unit::open_fds();
  size_t handles = fake.now().vmm_handles;
  for (const char* call : {"cuMemRetainAllocationHandle", "cuMemExportToShareableHandle"}) {
    for (uint64_t nth : {1, 2}) {
      ASSERT_EQ(fake.fail(call, nth, kOutOfMemory), 0);
      EXPECT_TRUE(fails_with(exports.find(*fake.driver, pointer(vmm.address), vmm.reserved),
                             OH_ERR_NO_RESOURCE, call));
      fake.clear_failures();
      EXPECT_EQ(unit::open_fds(), fds);
      EXPECT_EQ(fake.now().vmm_handles, handles);
    }
  }
  drop(vmm);
}

// In a process of its own, which loses its context.
TEST_F(GpuMemoryTest, DISABLED_ChildLosesItsContext) {
  DevicePtr memory = allocate(4096);
  Stream stream = *gpu->take_stream();
  ASSERT_EQ(fake.fail("copy", 1, kLaunchFailed), 0);
  EXPECT_TRUE(is_ok(gpu->copy(stream, memory, memory + 2048, 8, nullptr, 0, 0)));
  EXPECT_TRUE(unit::eventually([&] { return !gpu->is_idle(stream).ok(); }));
  EXPECT_TRUE(fails_with(gpu->loss(), OH_ERR_DEVICE, "start a new process"));
  EXPECT_EQ(gpu->event_behind(stream).status().code(), OH_ERR_DEVICE);
  gpu->give_stream(stream);
  gpu.reset();
  _exit(HasFailure() ? 1 : 0);
}

TEST_F(GpuMemoryTest, ALostContextIsAStatus) {
  EXPECT_TRUE(unit::run_child("GpuMemoryTest.DISABLED_ChildLosesItsContext", "", {}));
}

}  // namespace
}  // namespace gpu_memory_test
