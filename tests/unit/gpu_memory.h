// SPDX-License-Identifier: Apache-2.0
//
// For tests of device memory: memory of every kind on the fake driver's device 0.
//
// Threading: one thread.
#pragma once

#include <memory>
#include <vector>

#include "memory/gpu_memory.h"
#include "unit/fake_gpu.h"

namespace unit {

inline constexpr uint64_t kMiB = 1 << 20;

inline void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// VMM memory: chunks in one reservation, all with `handle_types`.
struct Vmm {
  oh::cuda::DevicePtr address = 0;
  uint64_t reserved = 0;
  uint64_t piece = 0;
  std::vector<bool> mapped;
};

class GpuMemoryTest : public GpuTest {
 protected:
  void TearDown() override {
    exports.retire(nullptr, UINT64_MAX);
    (void)exports.sweep(*fake.driver);
    GpuTest::TearDown();
  }

  oh::cuda::DevicePtr allocate(uint64_t size) {
    oh::cuda::Enter enter(*gpu);
    oh::cuda::DevicePtr address = 0;
    EXPECT_EQ(fake.driver->memory_alloc(&address, size), oh::cuda::kSuccess);
    return address;
  }
  void free(oh::cuda::DevicePtr address) {
    oh::cuda::Enter enter(*gpu);
    EXPECT_EQ(fake.driver->memory_free(address), oh::cuda::kSuccess);
  }

  oh::cuda::AllocationProp prop(int handle_types) {
    oh::cuda::AllocationProp made{};
    made.type = oh::cuda::kAllocationPinned;
    made.requested_handle_types = handle_types;
    made.location = {oh::cuda::kLocationDevice, 0};
    return made;
  }
  void map_piece(Vmm& vmm, size_t index, int handle_types) {
    oh::cuda::AllocationProp wanted = prop(handle_types);
    oh::cuda::AllocationHandle handle = 0;
    const oh::cuda::DevicePtr at = vmm.address + index * vmm.piece;
    ASSERT_EQ(fake.vmm_create(&handle, vmm.piece, &wanted, 0), oh::cuda::kSuccess);
    ASSERT_EQ(fake.driver->vmm_map(at, vmm.piece, 0, handle, 0), oh::cuda::kSuccess);
    ASSERT_EQ(fake.driver->vmm_release(handle), oh::cuda::kSuccess);
    oh::cuda::AccessDesc access{{oh::cuda::kLocationDevice, 0}, oh::cuda::kAccessReadWrite};
    ASSERT_EQ(fake.driver->vmm_set_access(at, vmm.piece, &access, 1), oh::cuda::kSuccess);
    vmm.mapped[index] = true;
  }
  void unmap_piece(Vmm& vmm, size_t index) {
    ASSERT_EQ(fake.driver->vmm_unmap(vmm.address + index * vmm.piece, vmm.piece),
              oh::cuda::kSuccess);
    vmm.mapped[index] = false;
  }
  // Maps all of `places` chunks except chunk `hole`.
  Vmm make_vmm(size_t places, size_t hole, int handle_types = oh::cuda::kHandleTypePosixFd) {
    oh::cuda::Enter enter(*gpu);
    Vmm vmm;
    oh::cuda::AllocationProp wanted = prop(handle_types);
    size_t granularity = 0;
    EXPECT_EQ(fake.driver->vmm_granularity(&granularity, &wanted, oh::cuda::kGranularityMinimum),
              oh::cuda::kSuccess);
    vmm.piece = granularity;
    vmm.reserved = places * granularity;
    EXPECT_EQ(fake.driver->vmm_reserve(&vmm.address, vmm.reserved, granularity, 0, 0),
              oh::cuda::kSuccess);
    vmm.mapped.resize(places);
    for (size_t i = 0; i < places; ++i) {
      if (i != hole) map_piece(vmm, i, handle_types);
    }
    return vmm;
  }
  void drop(Vmm& vmm) {
    oh::cuda::Enter enter(*gpu);
    for (size_t i = 0; i < vmm.mapped.size(); ++i) {
      if (vmm.mapped[i]) unmap_piece(vmm, i);
    }
    EXPECT_EQ(fake.driver->vmm_unreserve(vmm.address, vmm.reserved), oh::cuda::kSuccess);
  }

  // Allocates from an exportable pool.
  oh::cuda::DevicePtr pool_memory(uint64_t size, oh::cuda::MemoryPool* pool) {
    oh::cuda::Enter enter(*gpu);
    oh::cuda::PoolProps props{};
    props.type = oh::cuda::kAllocationPinned;
    props.handle_types = oh::cuda::kHandleTypePosixFd;
    props.location = {oh::cuda::kLocationDevice, 0};
    EXPECT_EQ(fake.pool_create(pool, &props), oh::cuda::kSuccess);
    oh::cuda::DevicePtr address = 0;
    EXPECT_EQ(fake.alloc_from_pool_async(&address, size, *pool, nullptr), oh::cuda::kSuccess);
    EXPECT_EQ(fake.driver->stream_synchronize(nullptr), oh::cuda::kSuccess);
    return address;
  }

  std::shared_ptr<const oh::GpuExport> exported(oh::cuda::DevicePtr address, uint64_t size) {
    oh::Result<std::shared_ptr<const oh::GpuExport>> found =
        exports.find(*fake.driver, pointer(address), size);
    EXPECT_TRUE(is_ok(found));
    return found.ok() ? *found : nullptr;
  }
  oh::GpuExports& exports = oh::GpuExports::instance();
};

}  // namespace unit
