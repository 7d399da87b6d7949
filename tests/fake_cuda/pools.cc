// SPDX-License-Identifier: Apache-2.0
//
// Memory pools: stream-ordered allocation, and sharing of a pool and its allocations. Memory is
// usable when the allocating call returns, and freed in stream order; a pool caches none.
//
// Threading: any thread.
#include <fcntl.h>

#include <cstring>

#include "session.h"
#include "streams.h"

namespace oh::cuda {
using namespace fake;

namespace {

bool is_device(const Location& location) {
  return location.type == kLocationDevice && location.id >= 0 &&
         static_cast<size_t>(location.id) < config().visible.size();
}

MemoryPool add(World& world, std::shared_ptr<Pool> pool) {
  const auto handle = world.new_handle<MemoryPool>();
  pool->handle = handle;
  world.pools.emplace(handle, std::move(pool));
  return handle;
}

std::shared_ptr<Pool> make_pool(Device ordinal) {
  auto pool = std::make_shared<Pool>();
  pool->ordinal = ordinal;
  pool->physical = config().visible[static_cast<size_t>(ordinal)];
  pool->access.insert(ordinal);
  return pool;
}

std::shared_ptr<Pool> default_pool(World& world, Device device) {
  auto& pool = world.default_pools[static_cast<size_t>(device)];
  if (pool == nullptr) {
    pool = make_pool(device);
    pool->is_default = true;
    add(world, pool);
  }
  return pool;
}

Code add_memory(Call& call, const std::shared_ptr<Pool>& pool, std::shared_ptr<Backing> backing,
                DevicePtr* out) {
  Range range;
  range.size = backing->facts().size;
  range.kind = Kind::kPool;
  range.bytes = backing->bytes();
  range.keep = backing;
  range.backing = std::move(backing);
  range.ordinal = pool->ordinal;
  range.imported = pool->imported;
  range.pool = pool;
  range.context = call.context();
  const DevicePtr base = call.world().place(std::move(range));
  if (base == 0) return kOutOfMemory;
  *out = base;
  return kSuccess;
}

Code allocate(Call& call, const std::shared_ptr<Pool>& pool, size_t size, Stream handle,
              DevicePtr* out) {
  std::shared_ptr<StreamState> stream;
  Code code = call.find(handle, &stream);
  if (code != kSuccess) return code;
  if (size == 0 || pool->imported) return kInvalidValue;
  if (stream->capture != nullptr) return kNotSupported;  // memory nodes are not supported
  std::shared_ptr<Backing> backing;
  code = Backing::create({Purpose::kPool, pool->physical, pool->handle_types, size}, &backing);
  return code == kSuccess ? add_memory(call, pool, std::move(backing), out) : code;
}

}  // namespace

Code cuMemPoolCreate(MemoryPool* out, const PoolProps* props) {
  Call call(Symbol::cuMemPoolCreate, kAnything);
  if (!call.ok()) return call.code();
  if (props->type != kAllocationPinned || !is_device(props->location)) return kInvalidValue;
  if ((props->handle_types & kHandleTypeFabric) != 0) return kNotPermitted;
  if ((props->handle_types & ~kHandleTypePosixFd) != 0) return kInvalidValue;
  auto pool = make_pool(props->location.id);
  pool->handle_types = props->handle_types;
  if (props->handle_types != 0) {
    pool->fd = create_named({Purpose::kPoolHandle, pool->physical, pool->handle_types, 0});
    if (pool->fd < 0) return kOutOfMemory;
    pool->object = inode_of(pool->fd);
  }
  *out = add(call.world(), std::move(pool));
  return kSuccess;
}

Code cuMemPoolDestroy(MemoryPool handle) {
  Call call(Symbol::cuMemPoolDestroy, kAnything);
  if (!call.ok()) return call.code();
  std::shared_ptr<Pool> pool;
  const Code code = call.find(handle, &pool);
  if (code != kSuccess) return code;
  if (pool->is_default) return kInvalidValue;
  call.world().pools.erase(handle);
  return kSuccess;
}

Code cuDeviceGetDefaultMemPool(MemoryPool* out, Device device) {
  Call call(Symbol::cuDeviceGetDefaultMemPool, kAnything);
  if (!call.ok()) return call.code();
  if (!is_device({kLocationDevice, device})) return kInvalidDevice;
  *out = default_pool(call.world(), device)->handle;
  return kSuccess;
}

Code cuMemAllocAsync(DevicePtr* out, size_t size, Stream stream) {
  Call call(Symbol::cuMemAllocAsync, kContext);
  if (!call.ok()) return call.code();
  return allocate(call, default_pool(call.world(), call.context()->ordinal), size, stream, out);
}

Code cuMemAllocFromPoolAsync(DevicePtr* out, size_t size, MemoryPool handle, Stream stream) {
  Call call(Symbol::cuMemAllocFromPoolAsync, kContext);
  if (!call.ok()) return call.code();
  std::shared_ptr<Pool> pool;
  const Code code = call.find(handle, &pool);
  return code == kSuccess ? allocate(call, pool, size, stream, out) : code;
}

Code cuMemFreeAsync(DevicePtr base, Stream handle) {
  Call call(Symbol::cuMemFreeAsync, kContext);
  if (!call.ok()) return call.code();
  const Range* range = call.world().find_base(base, Kind::kPool);
  if (range == nullptr) return kInvalidValue;
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess) return code;
  if (stream->capture != nullptr) return kNotSupported;  // memory nodes are not supported
  submit(call.world(), stream, {[base, id = range->buffer_id]() -> Code {
           World& world = World::instance();
           std::lock_guard<std::mutex> lock(world.mutex);
           const Range* now = world.find_base(base, Kind::kPool);
           if (now == nullptr || now->buffer_id != id) return kIllegalAddress;  // freed twice
           world.remove(base);
           return kSuccess;
         }});
  return kSuccess;
}

Code cuMemPoolTrimTo(MemoryPool handle, size_t) {
  Call call(Symbol::cuMemPoolTrimTo, kAnything);
  if (!call.ok()) return call.code();
  std::shared_ptr<Pool> pool;
  return call.find(handle, &pool);
}

Code cuMemPoolSetAccess(MemoryPool handle, const AccessDesc* rights, size_t count) {
  Call call(Symbol::cuMemPoolSetAccess, kAnything);
  if (!call.ok()) return call.code();
  std::shared_ptr<Pool> pool;
  const Code code = call.find(handle, &pool);
  if (code != kSuccess) return code;
  for (size_t i = 0; i < count; ++i) {
    const Location& location = rights[i].location;
    if (!is_device(location)) return kInvalidDevice;
    const int physical = config().visible[static_cast<size_t>(location.id)];
    if (!config().can_access(physical, pool->physical)) return kInvalidDevice;
    if (rights[i].flags != 0) {
      pool->access.insert(location.id);
    } else if (physical == pool->physical) {
      return kInvalidValue;  // its own device keeps access
    } else {
      pool->access.erase(location.id);
    }
  }
  return kSuccess;
}

Code cuMemPoolExportToShareableHandle(void* out, MemoryPool handle, int type, uint64_t flags) {
  Call call(Symbol::cuMemPoolExportToShareableHandle, kAnything);
  if (!call.ok()) return call.code();
  std::shared_ptr<Pool> pool;
  const Code code = call.find(handle, &pool);
  if (code != kSuccess) return code;
  if (pool->imported || flags != 0 || type != kHandleTypePosixFd) return kInvalidValue;
  if ((pool->handle_types & type) == 0) return kNotSupported;
  const int fd = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return kOutOfMemory;
  *static_cast<int*>(out) = fd;
  return kSuccess;
}

Code cuMemPoolImportFromShareableHandle(MemoryPool* out, void* shared, int type, uint64_t flags) {
  Call call(Symbol::cuMemPoolImportFromShareableHandle, kAnything);
  if (!call.ok()) return call.code();
  if (type != kHandleTypePosixFd || flags != 0) return kInvalidValue;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(shared));
  BackingFacts facts;
  const Code code = read_named(fd, &facts);
  if (code != kSuccess) return code;
  if (facts.purpose != Purpose::kPoolHandle) return kInvalidValue;
  auto pool = std::make_shared<Pool>();
  pool->physical = facts.physical;
  pool->ordinal = call.world().ordinal_of(facts.physical, -1);
  if (pool->ordinal >= 0) pool->access.insert(pool->ordinal);
  pool->imported = true;
  pool->object = inode_of(fd);
  *out = add(call.world(), std::move(pool));
  return kSuccess;
}

Code cuMemPoolExportPointer(PoolPointer* out, DevicePtr address) {
  Call call(Symbol::cuMemPoolExportPointer, kAnything);
  if (!call.ok()) return call.code();
  const Range* range = call.world().find(address);
  if (range == nullptr || range->kind != Kind::kPool || range->imported) return kInvalidValue;
  if (range->pool->handle_types == 0) return kInvalidValue;
  const SharedName name = name_of(*range->backing, range->pool->object);
  *out = PoolPointer{};
  memcpy(out->bytes, &name, sizeof(name));
  return kSuccess;
}

Code cuMemPoolImportPointer(DevicePtr* out, MemoryPool handle, PoolPointer* shared) {
  Call call(Symbol::cuMemPoolImportPointer, kContext);
  if (!call.ok()) return call.code();
  std::shared_ptr<Pool> pool;
  Code code = call.find(handle, &pool);
  if (code != kSuccess) return code;
  SharedName name;
  memcpy(&name, shared->bytes, sizeof(name));
  if (!pool->imported || name.pool != pool->object) return kInvalidValue;
  std::shared_ptr<Backing> backing;
  code = open_named(name, &backing);
  if (code != kSuccess) return code;
  if (backing->facts().purpose != Purpose::kPool) return kInvalidValue;
  return add_memory(call, pool, std::move(backing), out);
}

}  // namespace oh::cuda
