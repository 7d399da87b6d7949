// SPDX-License-Identifier: Apache-2.0
//
// Allocation of device addresses.
//
// Threading: any thread.
#include "arena.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config.h"

namespace oh::cuda::fake {

Arena& Arena::instance() {
  static Arena* const kArena = new Arena;  // outlives every thread
  return *kArena;
}

Arena::Arena() {
  // A raw system call: through libc, sanitizers would prepare shadow memory for the whole range.
  const long base = syscall(SYS_mmap, nullptr, kSize, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == -1) refuse("no address space for device memory");
  base_ = static_cast<DevicePtr>(base);
  // Each process starts elsewhere, so that a peer's address is not accidentally valid here.
  next_ = base_ + static_cast<size_t>(getpid() % 8192) * (size_t{9} << 21) + (size_t{1} << 21);
}

DevicePtr Arena::take(size_t size, size_t alignment) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t rounded = round_up(size, kPage);
  if (rounded < size || rounded > kSize) return 0;
  std::vector<DevicePtr>& again = released_[rounded];
  for (size_t i = again.size(); i-- > 0;) {
    const DevicePtr base = again[i];
    if (base % alignment != 0) continue;
    again.erase(again.begin() + static_cast<ptrdiff_t>(i));
    return base;
  }
  const DevicePtr base = round_up(next_, alignment);
  if (base + rounded > base_ + kSize) return 0;
  next_ = base + rounded;
  return base;
}

void Arena::give(DevicePtr base, size_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  released_[round_up(size, kPage)].push_back(base);
}

std::shared_ptr<CpuPages> CpuPages::create(size_t size) {
  std::shared_ptr<CpuPages> pages(new CpuPages);
  pages->base_ = Arena::instance().take(size, kPage);
  if (pages->base_ == 0) return nullptr;
  pages->size_ = round_up(size, kPage);
  void* at = mmap(reinterpret_cast<void*>(pages->base_), pages->size_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return at == MAP_FAILED ? nullptr : pages;
}

CpuPages::~CpuPages() {
  if (base_ == 0) return;
  mmap(reinterpret_cast<void*>(base_), size_, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  Arena::instance().give(base_, size_);
}

}  // namespace oh::cuda::fake
