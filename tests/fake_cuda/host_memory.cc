// SPDX-License-Identifier: Apache-2.0
//
// Registered host memory. Devices access it at a different address, so that code which confuses the
// two fails.
//
// Threading: any thread.
#include <sys/mman.h>

#include "call.h"

namespace oh::cuda {
using namespace fake;

namespace {

bool is_mapped(DevicePtr base, size_t size) {
  std::vector<unsigned char> pages(size / kPage);
  return mincore(reinterpret_cast<void*>(base), size, pages.data()) == 0;
}

DevicePtr add_alias(World& world, Range& host) {
  Range alias;
  alias.size = host.size;
  alias.kind = Kind::kHostAlias;
  alias.bytes = host.bytes;
  alias.keep = host.keep;
  alias.context = host.context;
  alias.ordinal = host.ordinal;
  alias.other = host.base;
  // The alias keeps the offset within the page, as both addresses must.
  const DevicePtr offset = host.base % kPage;
  alias.base = Arena::instance().take(host.size + offset, kPage);
  if (alias.base == 0) return 0;
  alias.base += offset;
  host.other = alias.base;
  return world.place(std::move(alias));
}

}  // namespace

Code cuMemHostRegister_v2(void* pointer, size_t size, unsigned flags) {
  Call call(Symbol::cuMemHostRegister_v2, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  World& world = call.world();
  const DevicePtr base = reinterpret_cast<DevicePtr>(pointer);
  if (base == 0 || size == 0 || flags > 15) return kInvalidValue;
  // Whole pages are pinned: two registrations may not share a page.
  const DevicePtr first = base / kPage * kPage;
  const DevicePtr end = round_up(base + size, kPage);
  if (Arena::instance().contains(base) || !is_mapped(first, end - first)) return kInvalidValue;
  auto next = world.ranges.lower_bound(end);
  if (next != world.ranges.begin()) {
    const Range& before = std::prev(next)->second;
    if (round_up(before.base + before.size, kPage) > first) return kHostMemoryAlreadyRegistered;
  }
  Range range;
  range.base = base;
  range.size = size;
  range.kind = Kind::kHost;
  range.bytes = static_cast<char*>(pointer);
  range.registered = true;
  range.context = call.context();
  range.ordinal = call.context()->ordinal;
  if (add_alias(world, range) == 0) return kOutOfMemory;
  world.place(std::move(range));
  return kSuccess;
}

Code cuMemHostUnregister(void* pointer) {
  Call call(Symbol::cuMemHostUnregister, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  const Range* range = call.world().find_base(reinterpret_cast<DevicePtr>(pointer), Kind::kHost);
  if (range == nullptr || !range->registered) return kHostMemoryNotRegistered;
  const uint64_t id = range->buffer_id;
  const Code code = call.wait_for_kernels(range->context);
  if (code != kSuccess) return code;
  range = call.world().find_base(reinterpret_cast<DevicePtr>(pointer), Kind::kHost);
  if (range == nullptr || range->buffer_id != id)
    return kHostMemoryNotRegistered;  // unregistered twice
  const DevicePtr alias = range->other;
  call.world().remove(range->base);
  call.world().remove(alias);
  return kSuccess;
}

Code cuMemHostGetDevicePointer_v2(DevicePtr* out, void* pointer, unsigned flags) {
  Call call(Symbol::cuMemHostGetDevicePointer_v2, kContext);
  if (!call.ok()) return call.code();
  if (flags != 0) return kInvalidValue;
  const DevicePtr address = reinterpret_cast<DevicePtr>(pointer);
  Range* range = call.world().find(address);
  if (range == nullptr || range->kind != Kind::kHost) return kInvalidValue;
  if (range->other == 0 && add_alias(call.world(), *range) == 0) return kOutOfMemory;
  *out = range->other + (address - range->base);
  return kSuccess;
}

}  // namespace oh::cuda
