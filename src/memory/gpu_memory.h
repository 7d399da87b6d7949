// SPDX-License-Identifier: Apache-2.0
//
// Device memory: what kind a pointer is, how it is described to other processes, and how theirs is
// mapped here.
//
// A range of device memory consists of one allocation (cudaMalloc, a pool) or of several (VMM:
// PyTorch's expandable segments). Each is known by its buffer id, which the driver never uses
// again: an id that has changed means that the memory was freed, whatever is at its address now.
// No lock is held over a driver call here.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "memory/export_record.h"
#include "memory/import_cache.h"
#include "platform/cuda/gpu.h"
#include "platform/os/handles.h"
#include "platform/os/process.h"

namespace oh {

enum class Placement : uint8_t {
  kHost,     // the CPU may touch it: pageable, pinned
  kDevice,   // of one device
  kManaged,  // moves between host and devices; only the copy engine touches it here
};

struct MemoryFacts {
  Placement placement = Placement::kHost;
  cuda::Device device = 0;
  uint64_t buffer_id = 0;  // of the allocation that holds the first byte
};

// What [data, data + size) is. OH_ERR_FAULT: device memory that was freed, or of another process's
// context, or that does not reach that far.
Result<MemoryFacts> classify(const cuda::Driver& driver, const void* data, uint64_t size);

// Device memory of ours as others get it. Immutable; the descriptors are open while it lives.
struct GpuExport {
  uint32_t number = 0;  // as of a SharedBlock; the highest bit is set
  cuda::Device device = 0;
  ExportRecord record;               // base and length cover whole allocations
  std::vector<uint64_t> buffer_ids;  // of its chunks
  std::vector<UniqueFd> fds;         // of the chunks that have one, in order
  std::string why_not;               // not empty: it cannot be mapped by others, and the remedy
  bool for_kernels = true;           // of one device, where it stays
  // Registered regions that it stands for, or 1 for a slab: while there are any, it is not retired.
  mutable std::atomic<uint32_t> regions{0};
  bool mappable() const { return why_not.empty(); }
};

class GpuExports {
 public:
  static constexpr uint32_t kNumberBit = 1u << 31;
  static GpuExports& instance();

  // The export that covers [data, data + size), device memory: a known one whose allocations are
  // still the same, or a new one. Memory that cannot be mapped by others gives one, too.
  Result<std::shared_ptr<const GpuExport>> find(const cuda::Driver& driver, const void* data,
                                                uint64_t size);
  // Only one that is known already, else null: one question to the driver.
  std::shared_ptr<const GpuExport> find_known(const cuda::Driver& driver, const void* data,
                                              uint64_t size);
  std::shared_ptr<const GpuExport> find(uint32_t number) const;
  // Forgets those whose memory was freed, and returns their numbers. Called every 100 ms by the
  // watcher: a free is not observable otherwise.
  std::vector<uint32_t> sweep(const cuda::Driver& driver);
  // Forgets all that overlap the range and stand for no region: its owner is about to free it.
  std::vector<uint32_t> retire(const void* data, uint64_t size);
  size_t size() const;

 private:
  using Export = std::shared_ptr<const GpuExport>;
  Export known_locked(uint64_t data, uint64_t size) const OH_REQUIRES(mutex_);
  void forget_locked(const GpuExport& gone) OH_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<uint64_t, Export> by_base_ OH_GUARDED_BY(mutex_);
  std::map<uint32_t, Export> by_number_ OH_GUARDED_BY(mutex_);
  std::vector<uint32_t> found_gone_ OH_GUARDED_BY(mutex_);  // by find(), for the next sweep()
};

// What the driver gave for another process's memory, and has to get back.
struct GpuMapping {
  std::shared_ptr<cuda::Gpu> gpu;
  ChunkKind kind = ChunkKind::kCudaPrivate;
  cuda::DevicePtr address = 0;  // as the driver returned it
  uint64_t reserved = 0;        // bytes of addresses; VMM only
  uint64_t mapped = 0;          // bytes of them that are mapped, from the start
  cuda::MemoryPool pool = nullptr;
};

// Device memory of another process, mapped here once per device, owner and number. When the last
// holder lets go it is queued to be closed: closing takes hundreds of microseconds and may block.
class GpuImports {
 public:
  static GpuImports& instance();

  // Maps it for `gpu`. OH_ERR_NOT_VIABLE: not between these devices, or not at all; the text says
  // why. OH_ERR_PROTOCOL: the record makes no sense.
  Result<std::shared_ptr<ImportedBlock>> open(const std::shared_ptr<cuda::Gpu>& gpu,
                                              const Id& owner, uint32_t number,
                                              const ExportRecord& record,
                                              std::vector<UniqueFd> fds);
  // Closes unused mappings; returns how many. Not on a data path.
  size_t close_unused();
  // Mappings that exist, with those that wait to be closed.
  size_t size() const;

 private:
  friend struct ImportedGpuBlock;
  using Key = std::tuple<Id, uint32_t, const cuda::Driver*, cuda::Device>;
  std::shared_ptr<ImportedBlock> known_locked(const Key& key) const OH_REQUIRES(mutex_);
  void discard(GpuMapping mapping);

  mutable Mutex mutex_;
  std::map<Key, std::weak_ptr<ImportedBlock>> blocks_ OH_GUARDED_BY(mutex_);
  std::vector<GpuMapping> unused_ OH_GUARDED_BY(mutex_);
  std::atomic<size_t> mappings_{0};  // relaxed: a count, nothing is ordered by it
};

}  // namespace oh
