// SPDX-License-Identifier: Apache-2.0
//
// The table of exports, and the checks that their memory still exists. gpu_export_walk.cc makes the
// exports.

#include "memory/gpu_export_walk.h"
#include "memory/gpu_memory.h"
#include "platform/cuda/pointer.h"
#include "platform/os/fork.h"

namespace oh {
namespace {

// Exports of VMM memory may overlap: how many that start before an address a look-up checks.
constexpr int kLookBack = 8;

bool covers(const ExportRecord& record, uint64_t data, uint64_t size) {
  const uint64_t offset = data - record.base;
  return data >= record.base && offset <= record.length && size <= record.length - offset;
}

bool overlaps(const ExportRecord& record, uint64_t data, uint64_t size) {
  return data < record.base + record.length && record.base < data + size;
}

enum class Life { kSame, kGone, kUnknown };

// Whether the allocations in [data, data + size) are still those that were exported.
Life life(const cuda::Driver& driver, const GpuExport& made, uint64_t data, uint64_t size) {
  for (size_t i = 0; i < made.record.chunks.size(); ++i) {
    const ExportChunk& chunk = made.record.chunks[i];
    const uint64_t base = made.record.base + chunk.offset;
    if (base + chunk.length <= data) continue;
    if (base >= data + size && base > data) break;
    Result<cuda::PointerFacts> now = cuda::pointer_facts(driver, base, cuda::Depth::kId);
    if (!now.ok()) return Life::kUnknown;
    if (now->buffer_id != made.buffer_ids[i]) return Life::kGone;
  }
  return Life::kSame;
}

}  // namespace

GpuExports& GpuExports::instance() {
  // A child of fork() gets a new instance: it has neither the descriptors nor the driver.
  return of_this_process([] { return new GpuExports; });
}

GpuExports::Export GpuExports::known_locked(uint64_t data, uint64_t size) const {
  auto after = by_base_.upper_bound(data);
  for (int step = 0; step < kLookBack && after != by_base_.begin(); ++step) {
    --after;
    if (covers(after->second->record, data, size)) return after->second;
  }
  return nullptr;
}

void GpuExports::forget_locked(const GpuExport& gone) {
  auto at_base = by_base_.find(gone.record.base);
  if (at_base != by_base_.end() && at_base->second->number == gone.number) by_base_.erase(at_base);
  by_number_.erase(gone.number);
}

GpuExports::Export GpuExports::find_known(const cuda::Driver& driver, const void* data,
                                          uint64_t size) {
  const auto from = reinterpret_cast<uint64_t>(data);
  while (true) {
    Export there;
    {
      MutexLock lock(mutex_);
      there = known_locked(from, size);
    }
    if (!there || life(driver, *there, from, size) != Life::kGone) return there;
    MutexLock lock(mutex_);
    if (by_number_.count(there->number) != 0) found_gone_.push_back(there->number);
    forget_locked(*there);
  }
}

Result<std::shared_ptr<const GpuExport>> GpuExports::find(const cuda::Driver& driver,
                                                          const void* data, uint64_t size) {
  const auto from = reinterpret_cast<uint64_t>(data);
  if (Export there = find_known(driver, data, size)) return there;
  OH_ASSIGN_OR_RETURN(std::shared_ptr<GpuExport> made, make_gpu_export(driver, from, size));
  MutexLock lock(mutex_);
  // Another thread may have exported it meanwhile: keep that export.
  Export other = known_locked(from, size);
  if (other && other->buffer_ids == made->buffer_ids) return other;
  made->number = next_gpu_export_number();
  by_base_[made->record.base] = made;
  by_number_[made->number] = made;
  return Export(made);
}

std::shared_ptr<const GpuExport> GpuExports::find(uint32_t number) const {
  MutexLock lock(mutex_);
  auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

std::vector<uint32_t> GpuExports::sweep(const cuda::Driver& driver) {
  std::vector<Export> all;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, there] : by_number_) all.push_back(there);
  }
  std::erase_if(all, [&](const Export& there) {
    return life(driver, *there, there->record.base, there->record.length) != Life::kGone;
  });
  MutexLock lock(mutex_);
  std::vector<uint32_t> gone = std::move(found_gone_);
  found_gone_.clear();
  for (const Export& there : all) {
    if (by_number_.count(there->number) != 0) gone.push_back(there->number);
    forget_locked(*there);
  }
  return gone;
}

std::vector<uint32_t> GpuExports::retire(const void* data, uint64_t size) {
  const auto from = reinterpret_cast<uint64_t>(data);
  MutexLock lock(mutex_);
  std::vector<Export> all;
  for (const auto& [number, there] : by_number_) {
    // acquire: pairs with RegionTable.
    bool free = there->regions.load(std::memory_order_acquire) == 0;
    if (free && overlaps(there->record, from, size)) all.push_back(there);
  }
  std::vector<uint32_t> gone;
  for (const Export& there : all) {
    gone.push_back(there->number);
    forget_locked(*there);
  }
  return gone;
}

size_t GpuExports::size() const {
  MutexLock lock(mutex_);
  return by_number_.size();
}

}  // namespace oh
