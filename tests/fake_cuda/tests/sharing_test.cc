// SPDX-License-Identifier: Apache-2.0
//
// Memory shared by two processes: legacy handles, VMM, pools; accounting of a device's memory.
//
// Threading: one thread in each process.
#include <unistd.h>

#include <cstring>

#include "support.h"

namespace fake_test {
namespace {

constexpr size_t kSize = 300000;
constexpr size_t kChunk = size_t{2} << 20;
constexpr int kDone = 1;

IpcHandle handle_in(const Message& message) {
  IpcHandle handle;
  memcpy(handle.bytes, message.handle, sizeof(handle));
  return handle;
}

template <typename Handle>
void put(const Handle& handle, Message* message) {
  memcpy(message->handle, handle.bytes, sizeof(handle));
}

uint64_t attribute(int which, DevicePtr address) {
  uint64_t value = 0;
  void* out = &value;
  EXPECT_EQ(driver().pointer_attributes(1, &which, &out, address), kSuccess) << which;
  return value;
}

// Copies from imported memory, checks the bytes, and writes seed 12 back.
void exchange(DevicePtr import, size_t size) {
  DevicePtr local = 0;
  EXPECT_EQ(driver().memory_alloc(&local, size), kSuccess);
  EXPECT_EQ(driver().memcpy_sync(local, import, size), kSuccess);
  EXPECT_EQ(peek(local, size), pattern(size, 11));
  poke(local, pattern(size, 12));
  EXPECT_EQ(driver().memcpy_sync(import, local, size), kSuccess);
  EXPECT_EQ(driver().memory_free(local), kSuccess);
}

FAKE_ROLE(open_legacy) {
  Current current;
  const IpcHandle handle = handle_in(receive(socket));
  DevicePtr first = 0;
  DevicePtr second = 0;
  EXPECT_EQ(driver().ipc_open(&first, handle, 0), kInvalidValue);
  EXPECT_EQ(driver().ipc_open(&first, handle, kIpcLazyPeerAccess), kSuccess);
  EXPECT_EQ(driver().ipc_open(&second, handle, kIpcLazyPeerAccess), kSuccess);
  EXPECT_EQ(first, second);
  EXPECT_EQ(attribute(kAttributeLegacyIpcCapable, first) & 1, 0u);
  EXPECT_EQ(attribute(kAttributeRangeSize, first), kSize);
  EXPECT_NE(attribute(kAttributeBufferId, first), 0u);
  IpcHandle again;
  EXPECT_EQ(driver().ipc_export(&again, first), kInvalidValue);
  EXPECT_EQ(driver().ipc_close(first), kSuccess);
  exchange(first, kSize);
  FakeCudaCounts counts;
  driver().counts(&counts);
  EXPECT_EQ(counts.imports, 1u);
  send(socket, {kDone, 0, {}, {}});
  receive(socket);
  EXPECT_EQ(driver().ipc_close(first), kSuccess);
  EXPECT_EQ(driver().ipc_close(first), kInvalidValue);
  EXPECT_EQ(driver().ipc_open(&first, handle, kIpcLazyPeerAccess), kInvalidValue);  // freed
  send(socket, {kDone, 0, {}, {}});
  return 0;
}

TEST(FakeSharing, ALegacyHandleReachesTheBytesAndAFreeGivesNothingBackBefore) {
  Current current;
  const size_t before = free_memory();
  DevicePtr memory = 0;
  ASSERT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  const size_t with_it = free_memory();
  EXPECT_LT(with_it, before);
  poke(memory, pattern(kSize, 11));
  IpcHandle handle;
  ASSERT_EQ(driver().ipc_export(&handle, memory + 1000), kSuccess);  // exports the whole allocation
  DevicePtr own = 0;
  EXPECT_EQ(driver().ipc_open(&own, handle, kIpcLazyPeerAccess), kInvalidContext);
  Child child("open_legacy");
  Message message;
  put(handle, &message);
  child.send(message);
  child.receive();
  EXPECT_EQ(peek(memory, kSize), pattern(kSize, 12));
  ASSERT_EQ(driver().memory_free(memory), kSuccess);
  EXPECT_EQ(free_memory(), with_it);
  child.send({});
  child.receive();
  EXPECT_EQ(free_memory(), before);
  EXPECT_EQ(child.wait(), 0);
}

FAKE_ROLE(hold_legacy) {
  Current current;
  DevicePtr memory = 0;
  EXPECT_EQ(driver().ipc_open(&memory, handle_in(receive(socket)), kIpcLazyPeerAccess), kSuccess);
  send(socket, {kDone, 0, {}, {}});
  pause();
  return 0;
}

TEST(FakeSharing, AKilledImporterHoldsNothing) {
  Current current;
  const size_t before = free_memory();
  DevicePtr memory = 0;
  ASSERT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  Message message;
  IpcHandle handle;
  ASSERT_EQ(driver().ipc_export(&handle, memory), kSuccess);
  put(handle, &message);
  Child child("hold_legacy");
  child.send(message);
  child.receive();
  ASSERT_EQ(driver().memory_free(memory), kSuccess);
  EXPECT_LT(free_memory(), before);
  child.kill();
  EXPECT_EQ(free_memory(), before);
}

FAKE_ROLE(own_legacy) {
  Current current;
  DevicePtr memory = 0;
  IpcHandle handle;
  EXPECT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  EXPECT_EQ(driver().ipc_export(&handle, memory), kSuccess);
  Message message;
  put(handle, &message);
  send(socket, message);
  pause();
  return 0;
}

TEST(FakeSharing, ADeadOwnersHandleCannotBeOpened) {
  Current current;
  Child child("own_legacy");
  const IpcHandle handle = handle_in(child.receive());
  child.kill();
  DevicePtr memory = 0;
  EXPECT_EQ(driver().ipc_open(&memory, handle, kIpcLazyPeerAccess), kInvalidValue);
}

FAKE_ROLE(open_without_peers) {
  Current current(1);
  const Message message = receive(socket);
  DevicePtr memory = 0;
  EXPECT_EQ(driver().ipc_open(&memory, handle_in(message), kIpcLazyPeerAccess),
            kPeerAccessUnsupported);
  Current same(0);
  EXPECT_EQ(driver().ipc_open(&memory, handle_in(message), kIpcLazyPeerAccess), kSuccess);
  EXPECT_EQ(driver().ipc_close(memory), kSuccess);
  return 0;
}

TEST(FakeSharing, AHandleOpensOnlyOnDevicesThatReach) {
  Current current;
  DevicePtr memory = 0;
  ASSERT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  Message message;
  IpcHandle handle;
  ASSERT_EQ(driver().ipc_export(&handle, memory), kSuccess);
  put(handle, &message);
  Child child("open_without_peers", {{"FAKE_CUDA", "devices=2,memory=256M,p2p=none"}});
  child.send(message);
  EXPECT_EQ(child.wait(), 0);
  ASSERT_EQ(driver().memory_free(memory), kSuccess);
}

FAKE_ROLE(map_vmm) {
  Current current(1);
  const Message message = receive(socket);
  const size_t size = message.fds.size() * kChunk;
  DevicePtr base = 0;
  EXPECT_EQ(driver().vmm_reserve(&base, size, 0, 0, 0), kSuccess);
  for (size_t i = 0; i < message.fds.size(); ++i) {
    AllocationHandle handle = 0;
    void* fd = reinterpret_cast<void*>(static_cast<intptr_t>(message.fds[i]));
    EXPECT_EQ(driver().vmm_import(&handle, fd, kHandleTypePosixFd), kSuccess);
    close(message.fds[i]);
    AllocationProp prop{};
    EXPECT_EQ(driver().vmm_properties(&prop, handle), kSuccess);
    EXPECT_EQ(prop.location.id, 0);
    int fd_again = -1;
    EXPECT_EQ(driver().vmm_export(&fd_again, handle, kHandleTypePosixFd, 0), kInvalidValue);
    EXPECT_EQ(driver().vmm_map(base + i * kChunk, kChunk, 0, handle, 0), kSuccess);
    EXPECT_EQ(driver().vmm_release(handle), kSuccess);
  }
  const AccessDesc access{{kLocationDevice, 1}, kAccessReadWrite};
  EXPECT_EQ(driver().vmm_set_access(base, size, &access, 1), kSuccess);
  EXPECT_EQ(attribute(kAttributeAllowedHandleTypes, base), 0u);
  exchange(base, size);
  EXPECT_EQ(driver().vmm_unmap(base, size), kSuccess);
  EXPECT_EQ(driver().vmm_unreserve(base, size), kSuccess);
  int pipe_ends[2];
  AllocationHandle none = 0;
  EXPECT_EQ(pipe(pipe_ends), 0);
  EXPECT_EQ(driver().vmm_import(&none, reinterpret_cast<void*>(static_cast<intptr_t>(pipe_ends[0])),
                                kHandleTypePosixFd),
            kInvalidValue);
  return 0;
}

TEST(FakeSharing, VmmChunksTravelAsDescriptors) {
  Current current;
  constexpr size_t kChunks = 3;
  const AllocationProp prop{
      kAllocationPinned, kHandleTypePosixFd, {kLocationDevice, 0}, nullptr, {}};
  const size_t before = free_memory();
  DevicePtr base = 0;
  Message message;
  ASSERT_EQ(driver().vmm_reserve(&base, kChunks * kChunk, 0, 0, 0), kSuccess);
  for (size_t i = 0; i < kChunks; ++i) {
    AllocationHandle handle = 0;
    int fd = -1;
    ASSERT_EQ(driver().vmm_create(&handle, kChunk, &prop, 0), kSuccess);
    ASSERT_EQ(driver().vmm_map(base + i * kChunk, kChunk, 0, handle, 0), kSuccess);
    ASSERT_EQ(driver().vmm_export(&fd, handle, kHandleTypePosixFd, 0), kSuccess);
    ASSERT_EQ(driver().vmm_release(handle), kSuccess);
    message.fds.push_back(fd);
  }
  const auto bytes = pattern(kChunks * kChunk, 11);
  poke(base, bytes);
  Child child("map_vmm");
  child.send(message);
  for (int fd : message.fds) close(fd);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(peek(base, bytes.size()), pattern(bytes.size(), 12));
  EXPECT_EQ(free_memory(), before - kChunks * kChunk);
  ASSERT_EQ(driver().vmm_unmap(base, kChunks * kChunk), kSuccess);
  ASSERT_EQ(driver().vmm_unreserve(base, kChunks * kChunk), kSuccess);
  EXPECT_EQ(free_memory(), before);
}

FAKE_ROLE(import_pool) {
  Current current(1);
  const Message message = receive(socket);
  MemoryPool pool = nullptr;
  DevicePtr memory = 0;
  void* fd = reinterpret_cast<void*>(static_cast<intptr_t>(message.fds.at(0)));
  EXPECT_EQ(driver().pool_import(&pool, fd, kHandleTypePosixFd, 0), kSuccess);
  PoolPointer pointer;
  memcpy(pointer.bytes, message.handle, sizeof(pointer));
  EXPECT_EQ(driver().pool_import_pointer(&memory, pool, &pointer), kSuccess);
  EXPECT_EQ(driver().alloc_from_pool_async(&memory, 100, pool, nullptr), kInvalidValue);
  const AccessDesc access{{kLocationDevice, 1}, kAccessReadWrite};
  EXPECT_EQ(driver().pool_set_access(pool, &access, 1), kSuccess);
  EXPECT_EQ(attribute(kAttributeMemoryPool, memory), reinterpret_cast<uint64_t>(pool));
  exchange(memory, kSize);
  PoolPointer again;
  EXPECT_EQ(driver().pool_export_pointer(&again, memory), kInvalidValue);
  EXPECT_EQ(driver().memory_free(memory), kSuccess);
  EXPECT_EQ(driver().pool_destroy(pool), kSuccess);
  return 0;
}

TEST(FakeSharing, APoolIsSharedIfItWasMadeForThat) {
  Current current;
  DevicePtr memory = 0;
  int fd = -1;
  PoolPointer pointer;
  MemoryPool pool = nullptr;
  ASSERT_EQ(driver().pool_default(&pool, 0), kSuccess);
  ASSERT_EQ(driver().alloc_async(&memory, kSize, nullptr), kSuccess);
  EXPECT_EQ(attribute(kAttributeAllowedHandleTypes, memory), 0u);
  EXPECT_EQ(attribute(kAttributeMemoryPool, memory), reinterpret_cast<uint64_t>(pool));
  EXPECT_EQ(driver().pool_export(&fd, pool, kHandleTypePosixFd, 0), kNotSupported);
  EXPECT_EQ(driver().pool_export_pointer(&pointer, memory), kInvalidValue);
  ASSERT_EQ(driver().free_async(memory, nullptr), kSuccess);
  PoolProps props{};
  props.type = kAllocationPinned;
  props.handle_types = kHandleTypePosixFd;
  props.location = {kLocationDevice, 0};
  ASSERT_EQ(driver().pool_create(&pool, &props), kSuccess);
  ASSERT_EQ(driver().alloc_from_pool_async(&memory, kSize, pool, nullptr), kSuccess);
  ASSERT_EQ(driver().pool_export(&fd, pool, kHandleTypePosixFd, 0), kSuccess);
  ASSERT_EQ(driver().pool_export_pointer(&pointer, memory), kSuccess);
  poke(memory, pattern(kSize, 11));
  Message message;
  put(pointer, &message);
  message.fds.push_back(fd);
  Child child("import_pool");
  child.send(message);
  close(fd);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(peek(memory, kSize), pattern(kSize, 12));
  ASSERT_EQ(driver().free_async(memory, nullptr), kSuccess);
  ASSERT_EQ(driver().stream_synchronize(nullptr), kSuccess);
  EXPECT_EQ(driver().pool_destroy(pool), kSuccess);
}

}  // namespace
}  // namespace fake_test
