// SPDX-License-Identifier: Apache-2.0
//
// Device memory: classifies pointers, exports local memory to other processes, and imports theirs.
//
// A range of device memory consists of one allocation (cudaMalloc, a pool) or of several (VMM:
// PyTorch's expandable segments). Each allocation has a buffer id, which the driver never reuses: a
// changed id means that the memory was freed, whatever is at its address now. No lock is held
// during a driver call.
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
  kHost,     // CPU-accessible: pageable or pinned
  kDevice,   // memory of one device
  kManaged,  // migrates between host and devices; only the copy engine accesses it here
};

struct MemoryFacts {
  Placement placement = Placement::kHost;
  cuda::Device device = 0;
  uint64_t buffer_id = 0;  // of the allocation of the first byte
  bool pinned = false;     // host memory of one registration with the driver
};

// Classifies [data, data + size). OH_ERR_FAULT: the device memory was freed, is not mapped, or ends
// before the range does.
Result<MemoryFacts> classify(const cuda::Driver& driver, const void* data, uint64_t size);

// An export of local device memory. Immutable; the descriptors stay open while it lives.
struct GpuExport {
  uint32_t number = 0;  // like SharedBlock::number, with the highest bit set
  cuda::Device device = 0;
  ExportRecord record;               // base and length cover whole allocations
  std::vector<uint64_t> buffer_ids;  // one per chunk
  std::vector<UniqueFd> fds;         // of the chunks that have one, in their order
  std::string why_not;               // if not empty: why others cannot map it, and the remedy
  bool for_kernels = true;           // on one device and not managed
  // Registered regions in this memory; 1 for a slab. Not retired while it is not zero.
  mutable std::atomic<uint32_t> regions{0};
  bool mappable() const { return why_not.empty(); }
  // Memory of cudaMalloc: within the process, all GPUs with peer access can access its address.
  bool plain() const { return record.chunks.front().kind == ChunkKind::kCudaIpc; }
};

class GpuExports {
 public:
  static constexpr uint32_t kNumberBit = 1u << 31;
  static GpuExports& instance();

  // The export that covers [data, data + size) of device memory: a known one whose allocations are
  // unchanged, or a new one. Memory that others cannot map has an export too (mappable()).
  Result<std::shared_ptr<const GpuExport>> find(const cuda::Driver& driver, const void* data,
                                                uint64_t size);
  // The same, but only a known export, else null. Costs one driver query per allocation.
  std::shared_ptr<const GpuExport> find_known(const cuda::Driver& driver, const void* data,
                                              uint64_t size);
  std::shared_ptr<const GpuExport> find(uint32_t number) const;
  // Removes the exports whose memory was freed and returns their numbers. The watcher polls it
  // every 100 ms, because the driver does not report frees.
  std::vector<uint32_t> sweep(const cuda::Driver& driver);
  // Removes the exports that overlap the range and hold no region, and returns their numbers. Call
  // it before the memory is freed.
  std::vector<uint32_t> retire(const void* data, uint64_t size);
  size_t size() const;

 private:
  using Export = std::shared_ptr<const GpuExport>;
  Export known_locked(uint64_t data, uint64_t size) const OH_REQUIRES(mutex_);
  void forget_locked(const GpuExport& gone) OH_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<uint64_t, Export> by_base_ OH_GUARDED_BY(mutex_);
  std::map<uint32_t, Export> by_number_ OH_GUARDED_BY(mutex_);
  std::vector<uint32_t> found_gone_ OH_GUARDED_BY(mutex_);  // removed by find(), until sweep()
};

// The driver's resources of one mapping of another process's memory.
struct GpuMapping {
  std::shared_ptr<cuda::Gpu> gpu;
  ChunkKind kind = ChunkKind::kCudaPrivate;
  cuda::DevicePtr address = 0;  // as the driver returned it
  uint64_t reserved = 0;        // bytes of the reserved address range; VMM only
  uint64_t mapped = 0;          // bytes mapped, from the start of that range
  cuda::MemoryPool pool = nullptr;
};

// Device memory of other processes, mapped once per Gpu, owner and number. When the last
// reference is released the mapping is queued for close_unused(): closing takes hundreds of
// microseconds and may block.
class GpuImports {
 public:
  static GpuImports& instance();

  // Maps the record's memory for `gpu`, or returns its existing mapping. OH_ERR_NOT_VIABLE: this
  // device cannot map it; the text gives the reason. OH_ERR_PROTOCOL: the record is malformed.
  Result<std::shared_ptr<ImportedBlock>> open(const std::shared_ptr<cuda::Gpu>& gpu,
                                              const Id& owner, uint32_t number,
                                              const ExportRecord& record,
                                              std::vector<UniqueFd> fds);
  // Closes unused mappings and returns their number. Not on a data path.
  size_t close_unused();
  // Number of mappings, including those queued to be closed.
  size_t size() const;

 private:
  friend struct ImportedGpuBlock;
  using Key = std::tuple<Id, uint32_t, const cuda::Gpu*>;
  std::shared_ptr<ImportedBlock> known_locked(const Key& key) const OH_REQUIRES(mutex_);
  void discard(GpuMapping mapping);

  mutable Mutex mutex_;
  std::map<Key, std::weak_ptr<ImportedBlock>> blocks_ OH_GUARDED_BY(mutex_);
  std::vector<GpuMapping> unused_ OH_GUARDED_BY(mutex_);
  std::atomic<size_t> mappings_{0};  // relaxed: a counter that orders nothing
};

}  // namespace oh
