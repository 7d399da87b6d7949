// SPDX-License-Identifier: Apache-2.0
//
// Memory from a single call: device, managed, pinned.
//
// Threading: any thread.
#include "call.h"
#include "session.h"

namespace oh::cuda {
using namespace fake;

namespace {

// Allocates memory at device addresses that the CPU may access, too.
Code allocate_for_cpu(Call& call, size_t size, Kind kind, DevicePtr* out) {
  if (size == 0) return kInvalidValue;
  Range range;
  range.size = size;
  range.kind = kind;
  const auto pages = CpuPages::create(size);
  if (pages == nullptr) return kOutOfMemory;
  range.base = pages->base();
  range.bytes = reinterpret_cast<char*>(range.base);
  range.keep = pages;
  range.context = call.context();
  range.ordinal = call.context()->ordinal;
  *out = call.world().place(std::move(range));
  return kSuccess;
}

}  // namespace

Code cuMemAlloc_v2(DevicePtr* out, size_t size) {
  Call call(Symbol::cuMemAlloc_v2, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  if (size == 0) return kInvalidValue;
  Range range;
  const Code code =
      Backing::create({Purpose::kPlain, call.context()->physical, 0, size}, &range.backing);
  if (code != kSuccess) return code;
  range.size = size;
  range.bytes = range.backing->bytes();
  range.keep = range.backing;
  range.context = call.context();
  range.ordinal = call.context()->ordinal;
  const DevicePtr base = call.world().place(std::move(range));
  if (base == 0) return kOutOfMemory;
  *out = base;
  return kSuccess;
}

Code cuMemFree_v2(DevicePtr base) {
  Call call(Symbol::cuMemFree_v2, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  const Range* range = call.world().find(base);
  if (range == nullptr || range->base != base) return kInvalidValue;
  if (range->kind != Kind::kDevice && range->kind != Kind::kManaged && range->kind != Kind::kPool) {
    return kInvalidValue;
  }
  const uint64_t id = range->buffer_id;
  const Code code = call.wait_for_kernels(range->context);
  if (code != kSuccess) return code;
  range = call.world().find(base);
  if (range == nullptr || range->buffer_id != id) return kInvalidValue;  // freed twice
  call.world().remove(base);
  return kSuccess;
}

Code cuMemGetInfo_v2(size_t* free, size_t* total) {
  Call call(Symbol::cuMemGetInfo_v2, kContext);
  if (!call.ok()) return call.code();
  const size_t used = Session::instance().used(call.context()->physical);
  *total = config().memory;
  *free = used > *total ? 0 : *total - used;
  return kSuccess;
}

Code cuMemAllocManaged(DevicePtr* out, size_t size, unsigned flags) {
  Call call(Symbol::cuMemAllocManaged, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  if (flags != 1 && flags != 2) return kInvalidValue;  // attached to all, or to the host
  return allocate_for_cpu(call, size, Kind::kManaged, out);
}

Code cuMemHostAlloc(void** out, size_t size, unsigned flags) {
  Call call(Symbol::cuMemHostAlloc, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  if (flags > 7) return kInvalidValue;
  DevicePtr base = 0;
  const Code code = allocate_for_cpu(call, size, Kind::kHost, &base);
  if (code == kSuccess) *out = reinterpret_cast<void*>(base);
  return code;
}

Code cuMemFreeHost(void* pointer) {
  Call call(Symbol::cuMemFreeHost, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  const Range* range = call.world().find_base(reinterpret_cast<DevicePtr>(pointer), Kind::kHost);
  if (range == nullptr || range->registered) return kInvalidValue;
  const DevicePtr alias = range->other;
  call.world().remove(range->base);
  call.world().remove(alias);
  return kSuccess;
}

}  // namespace oh::cuda
