// SPDX-License-Identifier: Apache-2.0
#include "memory/gpu_mapping.h"
#include "memory/gpu_memory.h"
#include "platform/os/fork.h"

namespace oh {

// Its destructor queues the mapping to be closed.
struct ImportedGpuBlock final : ImportedBlock {
  explicit ImportedGpuBlock(GpuImports& imports) : home(imports) {}
  ~ImportedGpuBlock() override {
    // In a child of fork() the driver is not usable: leak the mapping.
    if (mapping.gpu && mapping.gpu->driver().usable().ok()) home.discard(std::move(mapping));
  }
  ImportedGpuBlock(const ImportedGpuBlock&) = delete;
  ImportedGpuBlock& operator=(const ImportedGpuBlock&) = delete;

  GpuImports& home;
  GpuMapping mapping;
};

GpuImports& GpuImports::instance() {
  // A child of fork() gets a new instance: it has none of the mappings.
  return of_this_process([] { return new GpuImports; });
}

std::shared_ptr<ImportedBlock> GpuImports::known_locked(const Key& key) const {
  auto found = blocks_.find(key);
  return found == blocks_.end() ? nullptr : found->second.lock();
}

namespace {

// Returns the existing mapping if the record matches it: the peer may describe the same number
// differently.
Result<std::shared_ptr<ImportedBlock>> same(const std::shared_ptr<ImportedBlock>& block,
                                            const ExportRecord& record) {
  if (block->remote_base == record.base && block->size == record.length) return block;
  return error(OH_ERR_PROTOCOL,
               "exported memory %u of a peer has become another: %llu bytes at 0x%llx",
               block->number, static_cast<unsigned long long>(record.length),
               static_cast<unsigned long long>(record.base));
}

// Converts a failure to map: the path is not viable, unless the error concerns the device, the
// process or the protocol.
Status not_viable(const cuda::Gpu& gpu, const Status& status) {
  switch (status.code()) {
    case OH_ERR_DEVICE:
    case OH_ERR_CLOSED:
    case OH_ERR_FORKED:
    case OH_ERR_NO_RESOURCE:
    case OH_ERR_PROTOCOL:
      return status;
    default:
      return error(OH_ERR_NOT_VIABLE, "the peer's device memory cannot be mapped on cuda:%d: %s",
                   gpu.facts().ordinal, status.text().c_str());
  }
}

}  // namespace

Result<std::shared_ptr<ImportedBlock>> GpuImports::open(const std::shared_ptr<cuda::Gpu>& gpu,
                                                        const Id& owner, uint32_t number,
                                                        const ExportRecord& record,
                                                        std::vector<UniqueFd> fds) {
  const Key key{owner, number, gpu.get()};
  // Declared before the lock, so that they are released after it: a block's destructor takes it.
  std::shared_ptr<ImportedBlock> first;
  {
    MutexLock lock(mutex_);
    first = known_locked(key);
  }
  if (first) return same(first, record);
  OH_RETURN_IF_ERROR(check_gpu_record(record, fds.size()));
  auto block = std::make_shared<ImportedGpuBlock>(*this);
  Result<GpuMapping> mapping = map_gpu_record(gpu, record, fds);
  if (!mapping.ok()) return not_viable(*gpu, mapping.status());
  mappings_.fetch_add(1, std::memory_order_relaxed);
  block->mapping = std::move(*mapping);
  block->number = number;
  block->remote_base = record.base;
  block->local_base = reinterpret_cast<uint8_t*>(block->mapping.address);
  block->size = record.length;
  block->on_device = true;
  block->count();
  std::shared_ptr<ImportedBlock> made = std::move(block);
  MutexLock lock(mutex_);
  // Another thread may have mapped it meanwhile: `made` is then queued to be closed.
  first = known_locked(key);
  if (first) return same(first, record);
  std::erase_if(blocks_, [](const auto& entry) { return entry.second.expired(); });
  blocks_[key] = made;
  return made;
}

void GpuImports::discard(GpuMapping mapping) {
  MutexLock lock(mutex_);
  unused_.push_back(std::move(mapping));
}

size_t GpuImports::close_unused() {
  std::vector<GpuMapping> closing;
  {
    MutexLock lock(mutex_);
    closing.swap(unused_);
  }
  for (GpuMapping& mapping : closing) {
    unmap_gpu(std::move(mapping));
    mappings_.fetch_sub(1, std::memory_order_relaxed);
  }
  return closing.size();
}

size_t GpuImports::size() const { return mappings_.load(std::memory_order_relaxed); }

}  // namespace oh
