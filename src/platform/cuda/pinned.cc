// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <map>

#include "platform/cuda/gpu.h"

namespace oh::cuda {
namespace {

// The lock covers registering and unregistering. Otherwise the last holder could unregister a range
// that the next one has just found registered.
struct Registry {
  Mutex mutex;
  std::map<std::pair<const Driver*, void*>, std::weak_ptr<Pinned>> by_base OH_GUARDED_BY(mutex);
};

Registry& registry() {
  static Registry* const made = new Registry;
  return *made;
}

struct Pages {
  void* base;
  size_t size;
};

// The pages that hold the memory.
oh::Result<Pages> pages_of(void* base, size_t size) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uint64_t>(base);
  const uint64_t from = first & ~(page - 1);
  const uint64_t to = (first + size + page - 1) & ~(page - 1);
  if (size == 0 || to <= from) {
    return error(OH_ERR_INVALID, "%zu bytes at %p cannot be pinned", size, base);
  }
  return Pages{reinterpret_cast<void*>(from), to - from};
}

}  // namespace

oh::Result<std::shared_ptr<Pinned>> Pinned::of(const std::shared_ptr<Gpu>& gpu, void* base,
                                               size_t size) {
  OH_RETURN_IF_ERROR(gpu->driver().usable());
  OH_ASSIGN_OR_RETURN(const Pages pages, pages_of(base, size));
  std::shared_ptr<Pinned> known;  // released outside of the lock, which its destructor takes
  std::shared_ptr<Pinned> pinned(new Pinned);
  Registry& all = registry();
  MutexLock lock(all.mutex);
  auto entry = all.by_base.find({&gpu->driver(), pages.base});
  if (entry != all.by_base.end()) known = entry->second.lock();
  // A registration is gone with the context that made it.
  if (known && known->valid() && known->size_ >= pages.size) return known;
  OH_RETURN_IF_ERROR(pinned->start(gpu, pages.base, pages.size));
  all.by_base[{&gpu->driver(), pages.base}] = pinned;
  return pinned;
}

oh::Result<std::shared_ptr<Pinned>> Pinned::only(const std::shared_ptr<Gpu>& gpu, void* base,
                                                 size_t size) {
  OH_RETURN_IF_ERROR(gpu->driver().usable());
  OH_ASSIGN_OR_RETURN(const Pages pages, pages_of(base, size));
  std::shared_ptr<Pinned> pinned(new Pinned);
  pinned->listed_ = false;
  OH_RETURN_IF_ERROR(pinned->start(gpu, pages.base, pages.size));
  return pinned->gpu_ ? pinned : nullptr;
}

Status Pinned::start(const std::shared_ptr<Gpu>& gpu, void* base, size_t size) {
  const Driver& driver = gpu->driver();
  Enter enter(*gpu);
  OH_RETURN_IF_ERROR(enter.status());
  Code code = driver.host_register(base, size, kHostRegisterPortable | kHostRegisterDeviceMap);
  // If it is already registered, the application owns the registration.
  if (code == kHostMemoryAlreadyRegistered && !listed_) return {};
  if (code != kSuccess && code != kHostMemoryAlreadyRegistered) {
    return driver.failure(code, symbol::host_register, strf("%p, %zu bytes", base, size));
  }
  const bool ours = code == kSuccess;
  code = driver.host_device_pointer(&device_, base, 0);
  if (code != kSuccess) {
    if (ours) driver.host_unregister(base);
    return driver.failure(code, symbol::host_device_pointer, strf("%p", base));
  }
  gpu_ = gpu;
  base_ = base;
  size_ = size;
  ours_ = ours;
  if (ours) gpu->count_objects(1);
  return {};
}

Pinned::~Pinned() {
  // A child of fork() has nothing to release, and another thread of the parent may have held the
  // lock.
  if (gpu_ && gpu_->driver().usable().ok()) stop();
}

void Pinned::stop() {
  if (!listed_) return unregister();
  Registry& all = registry();
  MutexLock lock(all.mutex);
  auto entry = all.by_base.find({&gpu_->driver(), base_});
  if (entry != all.by_base.end() && entry->second.expired()) all.by_base.erase(entry);
  unregister();
}

void Pinned::unregister() {
  if (!ours_) return;
  gpu_->count_objects(-1);
  if (gpu_->is_lost()) return;
  Enter enter(*gpu_);
  if (enter.status().ok()) gpu_->driver().host_unregister(base_);
}

}  // namespace oh::cuda
