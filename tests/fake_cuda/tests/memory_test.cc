// SPDX-License-Identifier: Apache-2.0
//
// Memory of one process: kinds, attributes, CPU access, VMM, registered memory.
//
// Threading: one thread.
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "support.h"

namespace fake_test {
namespace {

constexpr size_t kChunk = size_t{2} << 20;
constexpr AllocationProp kShared{
    kAllocationPinned, kHandleTypePosixFd, {kLocationDevice, 0}, nullptr, {}};

template <typename T>
T attribute(int which, DevicePtr address) {
  T value{};
  void* out = &value;
  EXPECT_EQ(driver().pointer_attributes(1, &which, &out, address), kSuccess) << which;
  return value;
}

uint64_t buffer_id(DevicePtr address) { return attribute<uint64_t>(kAttributeBufferId, address); }

TEST(FakeMemory, AFreedAddressIsUsedAgainWithANewBufferId) {
  Current current;
  DevicePtr first = 0;
  ASSERT_EQ(driver().memory_alloc(&first, 70000), kSuccess);
  EXPECT_EQ(attribute<unsigned>(kAttributeMemoryType, first + 69999), kMemoryTypeDevice);
  EXPECT_EQ(attribute<unsigned>(kAttributeLegacyIpcCapable, first), 1u);
  EXPECT_EQ(attribute<size_t>(kAttributeRangeSize, first), 70000u);
  EXPECT_EQ(attribute<DevicePtr>(kAttributeRangeStart, first + 5), first);
  const uint64_t id = buffer_id(first);
  EXPECT_NE(id, 0u);
  ASSERT_EQ(driver().memory_free(first), kSuccess);
  EXPECT_EQ(attribute<unsigned>(kAttributeMemoryType, first), 0u);
  EXPECT_EQ(buffer_id(first), 0u);
  DevicePtr second = 0;
  ASSERT_EQ(driver().memory_alloc(&second, 70000), kSuccess);
  EXPECT_EQ(second, first);
  EXPECT_NE(buffer_id(second), id);
  EXPECT_EQ(driver().memory_free(second), kSuccess);
  EXPECT_EQ(driver().memory_free(second), kInvalidValue);
}

TEST(FakeMemory, UnknownHostMemoryHasNoAttributes) {
  Current current;
  int local = 0;
  const auto address = reinterpret_cast<DevicePtr>(&local);
  EXPECT_EQ(attribute<unsigned>(kAttributeMemoryType, address), 0u);
  EXPECT_EQ(buffer_id(address), 0u);
}

FAKE_ROLE(touch_device_memory) {
  Current current;
  DevicePtr memory = 0;
  EXPECT_EQ(driver().memory_alloc(&memory, 4096), kSuccess);
  char local[16];
  iovec here{local, sizeof(local)};
  iovec there{reinterpret_cast<void*>(memory), sizeof(local)};
  EXPECT_EQ(process_vm_readv(getpid(), &here, 1, &there, 1, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  if (::testing::Test::HasFailure()) return 1;
  signal(SIGSEGV, [](int) { _exit(77); });
  return *reinterpret_cast<volatile char*>(memory);
}

TEST(FakeMemory, TheCpuCannotTouchDeviceMemory) {
  Child child("touch_device_memory");
  EXPECT_EQ(child.wait(), 77);
}

TEST(FakeMemory, ManagedAndPinnedMemoryIsOfTheCpuToo) {
  Current current;
  DevicePtr managed = 0;
  void* pinned = nullptr;
  ASSERT_EQ(driver().memory_alloc_managed(&managed, 5000, 1), kSuccess);
  ASSERT_EQ(driver().host_alloc(&pinned, 5000, 0), kSuccess);
  EXPECT_EQ(attribute<unsigned>(kAttributeIsManaged, managed), 1u);
  EXPECT_EQ(attribute<unsigned>(kAttributeLegacyIpcCapable, managed), 0u);
  const auto pinned_address = reinterpret_cast<DevicePtr>(pinned);
  EXPECT_EQ(attribute<unsigned>(kAttributeMemoryType, pinned_address), kMemoryTypeHost);
  const auto bytes = pattern(5000, 1);
  memcpy(pinned, bytes.data(), bytes.size());
  ASSERT_EQ(driver().memcpy_sync(managed, pinned_address, 5000), kSuccess);
  EXPECT_EQ(memcmp(reinterpret_cast<void*>(managed), bytes.data(), 5000), 0);
  EXPECT_EQ(driver().memory_free(managed), kSuccess);
  EXPECT_EQ(driver().host_free(pinned), kSuccess);
}

TEST(FakeMemory, VmmMapsChunksIntoOneReservation) {
  Current current;
  DevicePtr base = 0;
  AllocationHandle handles[2] = {};
  ASSERT_EQ(driver().vmm_reserve(&base, 4 * kChunk, 0, 0, 0), kSuccess);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(driver().vmm_create(&handles[i], kChunk, &kShared, 0), kSuccess);
    ASSERT_EQ(driver().vmm_map(base + static_cast<size_t>(i) * kChunk, kChunk, 0, handles[i], 0),
              kSuccess);
  }
  EXPECT_EQ(driver().vmm_map(base, kChunk, 0, handles[0], 0), kInvalidValue);  // already mapped
  const AccessDesc access{{kLocationDevice, 0}, kAccessReadWrite};
  EXPECT_EQ(driver().vmm_set_access(base, 3 * kChunk, &access, 1), kInvalidValue);  // a gap
  ASSERT_EQ(driver().vmm_set_access(base, 2 * kChunk, &access, 1), kSuccess);
  const DevicePtr second = base + kChunk + 100;
  EXPECT_EQ(attribute<DevicePtr>(kAttributeRangeStart, second), base);
  EXPECT_EQ(attribute<size_t>(kAttributeRangeSize, second), 4 * kChunk);
  EXPECT_EQ(attribute<DevicePtr>(kAttributeMappingBase, second), base + kChunk);
  EXPECT_EQ(attribute<size_t>(kAttributeMappingSize, second), kChunk);
  EXPECT_EQ(attribute<uint64_t>(kAttributeAllowedHandleTypes, second), 1u);
  EXPECT_EQ(attribute<unsigned>(kAttributeLegacyIpcCapable, second), 0u);
  EXPECT_NE(buffer_id(base), buffer_id(second));
  const auto bytes = pattern(10000, 2);  // across the mappings
  ASSERT_EQ(driver().memcpy_sync(base + kChunk - 5000, reinterpret_cast<DevicePtr>(bytes.data()),
                                 bytes.size()),
            kSuccess);
  EXPECT_EQ(peek(base + kChunk - 5000, bytes.size()), bytes);
  // A new mapping shows the same bytes with a new id.
  const uint64_t id = buffer_id(base);
  const auto before = peek(base, kChunk);
  ASSERT_EQ(driver().vmm_unmap(base, kChunk), kSuccess);
  EXPECT_EQ(driver().peek(base, nullptr, 1), -1);
  ASSERT_EQ(driver().vmm_map(base, kChunk, 0, handles[0], 0), kSuccess);
  EXPECT_NE(buffer_id(base), id);
  EXPECT_EQ(peek(base, kChunk), before);
  AllocationHandle again = 0;
  ASSERT_EQ(driver().vmm_release(handles[1]), kSuccess);
  ASSERT_EQ(driver().vmm_retain(&again, reinterpret_cast<void*>(second)), kSuccess);
  EXPECT_EQ(again, handles[1]);
  AllocationProp prop{};
  ASSERT_EQ(driver().vmm_properties(&prop, again), kSuccess);
  EXPECT_EQ(prop.requested_handle_types, kHandleTypePosixFd);
  EXPECT_EQ(driver().vmm_unreserve(base, 4 * kChunk), kInvalidValue);
  ASSERT_EQ(driver().vmm_unmap(base, 2 * kChunk), kSuccess);
  ASSERT_EQ(driver().vmm_unreserve(base, 4 * kChunk), kSuccess);
  EXPECT_EQ(driver().vmm_release(handles[0]), kSuccess);
  EXPECT_EQ(driver().vmm_release(again), kSuccess);
  EXPECT_EQ(driver().vmm_release(again), kInvalidValue);
}

TEST(FakeMemory, RegisteredMemoryHasAnotherAddressForDevices) {
  Current current;
  std::vector<char> memory(40000);
  ASSERT_EQ(driver().host_register(memory.data(), memory.size(), kHostRegisterDeviceMap), kSuccess);
  EXPECT_EQ(driver().host_register(memory.data() + 8192, 10, 0), kHostMemoryAlreadyRegistered);
  EXPECT_EQ(driver().host_unregister(memory.data() + 1), kHostMemoryNotRegistered);
  const auto host = reinterpret_cast<DevicePtr>(memory.data());
  EXPECT_EQ(attribute<unsigned>(kAttributeMemoryType, host), kMemoryTypeHost);
  DevicePtr device = 0;
  ASSERT_EQ(driver().host_device_pointer(&device, memory.data() + 100, 0), kSuccess);
  EXPECT_NE(device, host + 100);
  poke(device, {'x', 'y'});
  EXPECT_EQ(memory[101], 'y');
  EXPECT_EQ(driver().host_unregister(memory.data()), kSuccess);
  EXPECT_EQ(driver().host_unregister(memory.data()), kHostMemoryNotRegistered);
  EXPECT_EQ(driver().host_device_pointer(&device, memory.data(), 0), kInvalidValue);
}

TEST(FakeMemory, TheDeviceHasAnEnd) {
  Current current;
  DevicePtr memory = 0;
  const size_t before = free_memory();
  EXPECT_EQ(driver().memory_alloc(&memory, size_t{257} << 20), kOutOfMemory);
  ASSERT_EQ(driver().memory_alloc(&memory, size_t{16} << 20), kSuccess);
  EXPECT_EQ(free_memory(), before - (size_t{16} << 20));
  ASSERT_EQ(driver().memory_free(memory), kSuccess);
  EXPECT_EQ(free_memory(), before);
}

}  // namespace
}  // namespace fake_test
