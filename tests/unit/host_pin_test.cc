// SPDX-License-Identifier: Apache-2.0
//
// HostPin on the fake driver: when shared host memory is registered, and when it is released.
#include "memory/host_pin.h"

#include <thread>

#include "device/locate.h"
#include "memory/import_cache.h"
#include "memory/shared_heap.h"
#include "unit/fake_gpu.h"

namespace unit::host_pin_test {
namespace {

using namespace oh;

constexpr uint64_t kSize = 100'000;

class HostPinTest : public GpuTest {
 protected:
  std::shared_ptr<SharedBlock> allocate() const { return *SharedHeap::instance().allocate(kSize); }
  void TearDown() override {
    EXPECT_TRUE(eventually([] { return UnusedPins::instance().empty(); }));
    GpuTest::TearDown();
  }
  // Frees the block. Its memory goes with the last reference.
  static void free(std::shared_ptr<SharedBlock> block) {
    EXPECT_TRUE(is_ok(SharedHeap::instance().free(block->mapping.data())));
  }
  uint64_t registered() const { return calls("cuMemHostRegister_v2"); }
  uint64_t released() const { return calls("cuMemHostUnregister"); }
};

TEST_F(HostPinTest, MemoryIsRegisteredOnceHoweverManyUse) {
  std::shared_ptr<SharedBlock> block = allocate();
  const uint64_t before = registered();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::shared_ptr<cuda::Pinned> pinned = block->pin(gpu);
      ASSERT_TRUE(pinned);
      EXPECT_NE(pinned->device(block->mapping.data()), block->base());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registered(), before + 1);
  free(std::move(block));
}

TEST_F(HostPinTest, AFailureIsRemembered) {
  std::shared_ptr<SharedBlock> block = allocate();
  const uint64_t before = registered();
  ASSERT_EQ(fake.fail("cuMemHostRegister_v2", 1, cuda::kOutOfMemory), 0);
  EXPECT_FALSE(block->pin(gpu));
  EXPECT_FALSE(block->pin(gpu));
  EXPECT_EQ(registered(), before + 1);
  free(std::move(block));
}

// Unregistering waits for kernels, so the thread that frees the memory does not do it.
TEST_F(HostPinTest, FreedMemoryIsUnregisteredByAnotherThread) {
  const uint64_t before = released();
  for (int i = 1; i <= 3; ++i) {
    std::shared_ptr<SharedBlock> block = allocate();
    ASSERT_TRUE(block->pin(gpu));
    free(std::move(block));
    EXPECT_TRUE(eventually([&] { return UnusedPins::instance().empty(); }));
    EXPECT_EQ(released(), before + static_cast<uint64_t>(i));
  }
}

// The application may unregister what it has registered at any time, and may have registered only
// part of it.
TEST_F(HostPinTest, WhatTheApplicationHasRegisteredIsLeftAlone) {
  std::shared_ptr<SharedBlock> block = allocate();
  void* const base = block->mapping.data();
  {
    cuda::Enter enter(*gpu);
    ASSERT_EQ(fake.driver->host_register(base, 4096, cuda::kHostRegisterDeviceMap), 0);
  }
  EXPECT_FALSE(block->pin(gpu));
  EXPECT_TRUE(view_pinned(gpu, base, 4096, /*ask=*/true).pinned);
  EXPECT_FALSE(view_pinned(gpu, base, 4097, /*ask=*/true).pinned);
  {
    cuda::Enter enter(*gpu);
    ASSERT_EQ(fake.driver->host_unregister(base), 0);
  }
  EXPECT_TRUE(view_pinned(gpu, base, 4097, /*ask=*/true).pinned);
  free(std::move(block));
}

// Its context, and the registration with it, may end at any time.
TEST_F(HostPinTest, KernelsOfAnotherGpuDoNotUseARegistration) {
  std::shared_ptr<SharedBlock> block = allocate();
  std::shared_ptr<cuda::Gpu> other = *cuda::Gpu::open(*fake.driver, "cuda:1");
  ASSERT_TRUE(block->pin(other));
  EXPECT_FALSE(view_pinned(gpu, block->mapping.data(), kSize, /*ask=*/true).pinned);
  EXPECT_TRUE(view_pinned(other, block->mapping.data(), kSize, /*ask=*/true).pinned);
  free(std::move(block));
}

TEST_F(HostPinTest, MemoryThatNoEngineUsedIsNotRegistered) {
  const uint64_t before = registered();
  free(allocate());
  EXPECT_EQ(registered(), before);
}

// Each mapping of a block is registered by itself.
TEST_F(HostPinTest, TheMappingOfAnotherProcessIsRegisteredToo) {
  std::shared_ptr<SharedBlock> block = allocate();
  Result<std::shared_ptr<ImportedBlock>> import = ImportCache::instance().open(
      Id{1}, block->number, block->base(), block->size(), block->fd.get());
  ASSERT_TRUE(is_ok(import));
  ASSERT_TRUE(block->pin(gpu));
  std::shared_ptr<cuda::Pinned> pinned = (*import)->pin(gpu);
  ASSERT_TRUE(pinned);
  block->mapping.data()[7] = 9;
  EXPECT_EQ(fake.bytes_at(pinned->device((*import)->local_base + 7), 1), Bytes{9});
  pinned.reset();
  const uint64_t before = released();
  import->reset();
  EXPECT_TRUE(eventually([&] { return released() == before + 1; }));
  free(std::move(block));
}

}  // namespace
}  // namespace unit::host_pin_test
