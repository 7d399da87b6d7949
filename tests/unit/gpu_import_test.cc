// SPDX-License-Identifier: Apache-2.0
//
// Device memory of other processes, mapped here. The child is this program again.
#include "memory/gpu_memory.h"

#include <stdlib.h>
#include <unistd.h>

#include "unit/gpu_memory.h"

namespace gpu_import_test {
namespace {

using namespace oh;
using namespace oh::cuda;
using unit::fails_with;
using unit::GpuMemoryTest;
using unit::is_ok;
using unit::kMiB;
using unit::pointer;
using unit::Vmm;

std::string hex(const Bytes& bytes) {
  std::string text;
  for (uint8_t byte : bytes) text += strf("%02x", byte);
  return text;
}

Bytes from_hex(const std::string& text) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

class GpuImportTest : public GpuMemoryTest {
 protected:
  // A child maps the memory, finds `bytes` at its start, writes their inverse, and makes every call
  // fail once.
  void check_in_child(const GpuExport& there, const Bytes& bytes);
};

TEST_F(GpuImportTest, RecordsThatMakeNoSenseAreRefused) {
  GpuImports& imports = GpuImports::instance();
  auto opened = [&](const ExportRecord& record) {
    return imports.open(gpu, Id{}, 1, record, {}).status();
  };
  const Bytes handle(64);
  ExportRecord record;
  EXPECT_TRUE(fails_with(opened(record), OH_ERR_PROTOCOL));
  record.base = 1 << 20;
  record.length = 4096;
  record.chunks = {{0, 4096, ChunkKind::kCudaIpc, Bytes(63)}};
  EXPECT_TRUE(fails_with(opened(record), OH_ERR_PROTOCOL));
  record.chunks = {{0, 4096, ChunkKind::kCudaFd, {}}};
  EXPECT_TRUE(fails_with(opened(record), OH_ERR_PROTOCOL, "0 of 1 descriptors"));
  record.chunks = {{0, 2048, ChunkKind::kCudaIpc, handle},
                   {2048, 2048, ChunkKind::kCudaIpc, handle}};
  EXPECT_TRUE(fails_with(opened(record), OH_ERR_NOT_VIABLE));
  record.chunks = {{0, 2048, ChunkKind::kCudaIpc, handle}};
  EXPECT_TRUE(fails_with(opened(record), OH_ERR_PROTOCOL));
  record.chunks = {{0, 4096, ChunkKind::kPrivate, {}}};
  EXPECT_TRUE(fails_with(opened(record), OH_ERR_NOT_VIABLE));
  record.base = UINT64_MAX - 5;
  EXPECT_TRUE(fails_with(opened(record), OH_ERR_PROTOCOL));
  EXPECT_EQ(imports.size(), 0u);
}

TEST_F(GpuImportTest, MemoryOfThisProcessIsNotViable) {
  DevicePtr memory = allocate(kMiB);
  std::shared_ptr<const GpuExport> there = exported(memory, kMiB);
  ASSERT_TRUE(there);
  EXPECT_TRUE(fails_with(GpuImports::instance().open(gpu, Id{}, 1, there->record, {}),
                         OH_ERR_NOT_VIABLE, "cuIpcOpenMemHandle_v2"));
  free(memory);
}

TEST_F(GpuImportTest, ManyThreadsShareOneMapping) {
  Vmm vmm = make_vmm(2, 2);
  std::shared_ptr<const GpuExport> there = exported(vmm.address, vmm.reserved);
  ASSERT_TRUE(there);
  GpuImports& imports = GpuImports::instance();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::shared_ptr<ImportedBlock>> blocks(4);
    {
      unit::Threads threads;
      for (auto& block : blocks) {
        threads.start([&] {
          std::vector<UniqueFd> fds;
          for (const UniqueFd& fd : there->fds) fds.emplace_back(dup(fd.get()));
          Result<std::shared_ptr<ImportedBlock>> made =
              imports.open(gpu, Id{2}, there->number, there->record, std::move(fds));
          EXPECT_TRUE(is_ok(made));
          if (made.ok()) block = *made;
        });
      }
    }
    for (auto& block : blocks) EXPECT_EQ(block, blocks[0]);
    imports.close_unused();
    EXPECT_EQ(imports.size(), 1u);
  }
  EXPECT_EQ(imports.close_unused(), 1u);
  // A number identifies one piece of memory.
  std::vector<UniqueFd> fds;
  for (const UniqueFd& fd : there->fds) fds.emplace_back(dup(fd.get()));
  Result<std::shared_ptr<ImportedBlock>> block =
      imports.open(gpu, Id{2}, there->number, there->record, std::move(fds));
  ASSERT_TRUE(is_ok(block));
  ExportRecord other = there->record;
  other.base += vmm.piece;
  EXPECT_TRUE(fails_with(imports.open(gpu, Id{2}, there->number, other, {}), OH_ERR_PROTOCOL,
                         "has become another"));
  block = Status();
  EXPECT_EQ(imports.close_unused(), 1u);
  drop(vmm);
}

// A mapping is gone with its context. The extra release and retain stand for cudaDeviceReset().
TEST_F(GpuImportTest, ADeviceThatWasResetMapsAnew) {
  GpuImports& imports = GpuImports::instance();
  Vmm vmm = make_vmm(1, 1);
  const std::shared_ptr<const GpuExport> there = exported(vmm.address, vmm.reserved);
  ASSERT_TRUE(there);
  const auto open = [&] {
    std::vector<UniqueFd> fds;
    for (const UniqueFd& fd : there->fds) fds.emplace_back(dup(fd.get()));
    return imports.open(gpu, Id{3}, there->number, there->record, std::move(fds));
  };
  Result<std::shared_ptr<ImportedBlock>> one = open();
  ASSERT_TRUE(is_ok(one));
  ASSERT_EQ(fake.driver->primary_release(0), kSuccess);
  Context context = nullptr;
  ASSERT_EQ(fake.driver->primary_retain(&context, 0), kSuccess);
  Result<std::shared_ptr<Gpu>> next = Gpu::open(*fake.driver, 0);
  ASSERT_TRUE(is_ok(next));
  gpu = *next;
  Result<std::shared_ptr<ImportedBlock>> two = open();
  ASSERT_TRUE(is_ok(two));
  EXPECT_NE(*one, *two);
  {
    // Reserved addresses belong to no context.
    Enter enter(*gpu);
    const auto lost = reinterpret_cast<DevicePtr>((*one)->local_base);
    EXPECT_EQ(fake.driver->vmm_unmap(lost, there->record.length), kSuccess);
    EXPECT_EQ(fake.driver->vmm_unreserve(lost, there->record.length), kSuccess);
  }
  one = Status();
  two = Status();
  EXPECT_EQ(imports.close_unused(), 2u);
  drop(vmm);
}

// The child's part of check_in_child().
TEST_F(GpuImportTest, DISABLED_ChildImports) {
  const char* text = getenv(unit::kChildText);
  ASSERT_NE(text, nullptr);
  const std::string whole = text;
  const size_t colon = whole.find(':');
  const size_t fds = static_cast<size_t>(std::stoi(whole.substr(0, colon)));
  const size_t comma = whole.find(',');
  Bytes encoded = from_hex(whole.substr(colon + 1, comma - colon - 1));
  Bytes bytes = from_hex(whole.substr(comma + 1));
  Reader reader(encoded);
  Result<ExportRecord> record = ExportRecord::decode(reader);
  ASSERT_TRUE(is_ok(record));
  GpuImports& imports = GpuImports::instance();
  const uint32_t number = GpuExports::kNumberBit | 5;
  auto open = [&] {
    std::vector<UniqueFd> copies;
    for (size_t i = 0; i < fds; ++i) {
      copies.emplace_back(dup(unit::kFirstFd + static_cast<int>(i)));
    }
    return imports.open(gpu, Id{1}, number, *record, std::move(copies));
  };
  ASSERT_TRUE(is_ok(open()));  // the fake driver opens its session on first use
  EXPECT_EQ(imports.close_unused(), 1u);
  const std::string before = unit::text_of(fake.now());
  const size_t descriptors = unit::open_fds();
  // Each call fails once, at each of its uses.
  int failures = 0;
  for (const char* call :
       {"cuIpcOpenMemHandle_v2", "cuMemGetAllocationGranularity", "cuMemAddressReserve",
        "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess",
        "cuMemPoolImportFromShareableHandle", "cuMemPoolSetAccess", "cuMemPoolImportPointer",
        "cuPointerGetAttributes", "cuCtxPushCurrent_v2"}) {
    for (uint64_t nth = 1;; ++nth) {
      ASSERT_EQ(fake.fail(call, nth, kNotSupported), 0) << call;
      Result<std::shared_ptr<ImportedBlock>> block = open();
      fake.clear_failures();
      if (block.ok()) break;
      ++failures;
      EXPECT_TRUE(fails_with(block, OH_ERR_NOT_VIABLE, call));
      EXPECT_EQ(unit::text_of(fake.now()), before) << call << " " << nth;
      EXPECT_EQ(unit::open_fds(), descriptors) << call << " " << nth;
    }
    imports.close_unused();
    EXPECT_EQ(unit::text_of(fake.now()), before) << call;
  }
  EXPECT_GE(failures, 2);
  {
    Result<std::shared_ptr<ImportedBlock>> block = open();
    ASSERT_TRUE(is_ok(block));
    EXPECT_TRUE((*block)->on_device);
    EXPECT_EQ(*open(), *block);
    EXPECT_EQ(imports.size(), 1u);
    uint8_t* there = (*block)->translate(record->base, bytes.size());
    ASSERT_NE(there, nullptr);
    const auto address = reinterpret_cast<uint64_t>(there);
    EXPECT_EQ(fake.bytes_at(address, bytes.size()), bytes);
    // By the copy engine, from local memory to the mapping.
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(~byte);
    DevicePtr local = allocate(bytes.size());
    ASSERT_TRUE(fake.write(local, bytes));
    Stream stream = *gpu->take_stream();
    EXPECT_TRUE(is_ok(gpu->copy(stream, address, local, bytes.size(), nullptr, 0, 0)));
    EXPECT_TRUE(finish(stream));
    gpu->give_stream(stream);
    free(local);
    // Imported memory is not exported again.
    std::shared_ptr<const GpuExport> again = exported(address, 8);
    ASSERT_TRUE(again);
    exports.retire(pointer(address), 8);
  }
  EXPECT_EQ(imports.size(), 1u);  // waits until it can be unmapped
  EXPECT_EQ(imports.close_unused(), 1u);
  EXPECT_EQ(imports.close_unused(), 0u);
  EXPECT_EQ(imports.size(), 0u);
  EXPECT_EQ(unit::text_of(fake.now()), before);
  EXPECT_EQ(unit::open_fds(), descriptors);
  if (record->chunks[0].kind == ChunkKind::kCudaIpc) {
    // A length that differs from the handle's.
    record->length += 4096 * kMiB;
    record->chunks[0].length = record->length;
    EXPECT_TRUE(fails_with(open(), OH_ERR_PROTOCOL, "announced"));
    EXPECT_EQ(unit::text_of(fake.now()), before);
  }
}

void GpuImportTest::check_in_child(const GpuExport& there, const Bytes& bytes) {
  ASSERT_TRUE(there.mappable()) << there.why_not;
  ASSERT_TRUE(fake.write(there.record.base, bytes));
  Bytes encoded;
  Writer writer(encoded);
  there.record.encode(writer);
  const std::string text =
      strf("%zu:%s,%s", there.fds.size(), hex(encoded).c_str(), hex(bytes).c_str());
  EXPECT_TRUE(unit::run_child("GpuImportTest.DISABLED_ChildImports", text, there.fds));
  Bytes wanted = bytes;
  for (uint8_t& byte : wanted) byte = static_cast<uint8_t>(~byte);
  EXPECT_EQ(fake.bytes_at(there.record.base, bytes.size()), wanted);
}

TEST_F(GpuImportTest, AnotherProcessMapsCudaMalloc) {
  DevicePtr memory = allocate(kMiB);
  check_in_child(*exported(memory, kMiB), unit::Random(1).bytes(20000));
  free(memory);
}

TEST_F(GpuImportTest, AnotherProcessMapsVmmPieces) {
  Vmm vmm = make_vmm(3, 3);
  // In the first two chunks.
  std::shared_ptr<const GpuExport> there = exported(vmm.address, vmm.reserved);
  ASSERT_TRUE(there);
  EXPECT_EQ(there->record.chunks.size(), 3u);
  check_in_child(*there, unit::Random(2).bytes(20000));
  drop(vmm);
}

TEST_F(GpuImportTest, AnotherProcessMapsPoolMemory) {
  MemoryPool pool = nullptr;
  DevicePtr memory = pool_memory(kMiB, &pool);
  std::shared_ptr<const GpuExport> there = exported(memory, kMiB);
  ASSERT_TRUE(there);
  EXPECT_EQ(there->record.chunks[0].kind, ChunkKind::kCudaPool);
  check_in_child(*there, unit::Random(3).bytes(20000));
  Enter enter(*gpu);
  ASSERT_EQ(fake.free_async(memory, nullptr), kSuccess);
  ASSERT_EQ(fake.driver->stream_synchronize(nullptr), kSuccess);
  ASSERT_EQ(fake.driver->pool_destroy(pool), kSuccess);
}

}  // namespace
}  // namespace gpu_import_test
