// SPDX-License-Identifier: Apache-2.0
#include "link/regions.h"

#include <algorithm>

#include "control/address.h"

namespace oh {

Status block_beyond_offsets(uint64_t index) {
  return error(OH_ERR_RANGE, "block %llu: its offset does not fit into 64 bits",
               static_cast<unsigned long long>(index));
}

Status block_outside(uint64_t index, uint64_t offset, uint64_t size, const Extent& extent) {
  return error(OH_ERR_RANGE, "block %llu: %llu bytes at %llu are outside of the %s's %llu bytes",
               static_cast<unsigned long long>(index), static_cast<unsigned long long>(size),
               static_cast<unsigned long long>(offset), extent.name,
               static_cast<unsigned long long>(extent.length));
}
namespace {
constexpr uint32_t kMagic = 0x4752484f;          // "OHRG"
constexpr uint32_t kReadOnlyMagic = 0x4f52484f;  // "OHRO"
}  // namespace

Bytes RegionDescriptor::encode() const {
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(read_only ? kReadOnlyMagic : kMagic);
  writer.u16(kWireMajor);
  writer.u16(kWireMinor);
  writer.raw(process);
  writer.raw(endpoint);
  writer.u32(index);
  writer.u64(version);
  record.encode(writer);
  return bytes;
}

Result<RegionDescriptor> RegionDescriptor::decode(ByteView bytes) {
  Reader reader(bytes);
  const uint32_t magic = reader.u32();
  if (bytes.size() < 8 || (magic != kMagic && magic != kReadOnlyMagic)) {
    return error(OH_ERR_INVALID, "these %zu bytes are no region descriptor", bytes.size());
  }
  uint16_t major = reader.u16();
  uint16_t minor = reader.u16();
  OH_RETURN_IF_ERROR(check_wire_version(
      major, minor, "the owner of this region descriptor, unless its bytes were altered,"));
  RegionDescriptor descriptor;
  descriptor.read_only = magic == kReadOnlyMagic;
  for (Id* id : {&descriptor.process, &descriptor.endpoint}) {
    ByteView raw = reader.raw(id->size());
    std::copy(raw.begin(), raw.end(), id->begin());
  }
  descriptor.index = reader.u32();
  descriptor.version = reader.u64();
  Result<ExportRecord> record = ExportRecord::decode(reader);
  if (record.ok() && !reader.at_end()) {
    return error(OH_ERR_INVALID,
                 "there is more behind the region descriptor in these %zu bytes: pass it alone, as "
                 "long as it was when it was sent",
                 bytes.size());
  }
  if (!record.ok() || descriptor.index >= ControlPage::kMaxRegions || descriptor.version == 0) {
    return error(OH_ERR_INVALID, "the region descriptor of %zu bytes is cut off or was altered",
                 bytes.size());
  }
  descriptor.record = std::move(*record);
  return descriptor;
}

Result<std::shared_ptr<RegionRecord>> RegionTable::add(void* base, uint64_t length,
                                                       std::shared_ptr<const GpuExport> exported,
                                                       RegionAccess access, bool pinned) {
  if (!base || length == 0) {
    return error(OH_ERR_INVALID, "cannot register %llu bytes at %p",
                 static_cast<unsigned long long>(length), base);
  }
  auto region = std::make_shared<RegionRecord>();
  region->base = static_cast<uint8_t*>(base);
  region->length = length;
  region->exported = std::move(exported);
  region->access = access;
  region->pinned = pinned;
  if (!region->exported) region->block = SharedHeap::instance().find(base, length);
  MutexLock lock(mutex_);
  if (free_.empty()) {
    if (regions_.size() >= ControlPage::kMaxRegions) {
      return error(OH_ERR_NO_RESOURCE, "%u regions are registered already: deregister some",
                   ControlPage::kMaxRegions);
    }
    free_.push_back(static_cast<uint32_t>(regions_.size()));
    regions_.emplace_back();
  }
  region->index = free_.back();
  free_.pop_back();
  region->version = ++last_version_;
  regions_[region->index] = region;
  if (region->exported) region->exported->regions.fetch_add(1, std::memory_order_relaxed);
  if (!region->for_batch()) g_metrics.registered_bytes.add(length);
  // seq_cst: pairs with the check by one-sided operations (immediate_copies.cc).
  page_.region(region->index).store(region->version, std::memory_order_seq_cst);
  return region;
}

uint64_t RegionTable::retire(const RegionRecord& region) {
  MutexLock lock(mutex_);
  return is_valid(region.index, region.version) ? remove(region.index) : 0;
}

bool RegionTable::withdraw(const RegionRecord& region) {
  MutexLock lock(mutex_);
  if (!is_valid(region.index, region.version)) return false;
  uint64_t version = region.version;
  // seq_cst: pairs with the sender that takes it.
  if (!page_.region(region.index).compare_exchange_strong(version, 0)) return false;
  remove(region.index);
  return true;
}

void RegionTable::retire_all() {
  MutexLock lock(mutex_);
  for (uint32_t index = 0; index < regions_.size(); ++index) {
    if (regions_[index]) remove(index);
  }
}

uint64_t RegionTable::remove(uint32_t index) {
  uint64_t word = page_.region(index).exchange(0, std::memory_order_seq_cst);
  free_.push_back(index);
  const GpuExport* exported = regions_[index]->exported.get();
  if (!regions_[index]->for_batch()) g_metrics.registered_bytes.sub(regions_[index]->length);
  // release: pairs with GpuExports::retire().
  if (exported) exported->regions.fetch_sub(1, std::memory_order_release);
  regions_[index].reset();
  return word;
}

std::shared_ptr<RegionRecord> RegionTable::find(uint32_t index, uint64_t version,
                                                Taking taking) const {
  MutexLock lock(mutex_);
  if (!is_valid(index, version)) return nullptr;
  // A sender that has not mapped this control page takes the region this way.
  if (regions_[index]->for_batch() && taking == Taking::kYes) {
    uint64_t free = version;
    page_.region(index).compare_exchange_strong(free, version | kTakenBit);
  }
  return regions_[index];
}

size_t RegionTable::size() const {
  MutexLock lock(mutex_);
  return regions_.size() - free_.size();
}

}  // namespace oh
