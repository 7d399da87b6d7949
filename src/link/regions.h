// SPDX-License-Identifier: Apache-2.0
//
// RegionTable: the regions of an endpoint, memory that peers may read and write. While a region is
// valid, the endpoint's control page has its version at its index. Its descriptor holds what a peer
// needs to reach it.
//
// Threading: any thread.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "memory/control_page.h"
#include "memory/export_record.h"
#include "memory/gpu_memory.h"
#include "memory/shared_heap.h"
#include "onehop/types.h"
#include "platform/os/process.h"

namespace oh {

class UcxMapping;

// What peers may do with a region.
enum class RegionAccess : uint8_t {
  kReadWrite,
  kReadOnly,
  kBatch,  // for a batch receive: the sender that takes the region writes one batch into it
};

struct RegionRecord {
  uint32_t index = 0;
  uint64_t version = 0;  // never 0, never the same twice
  uint8_t* base = nullptr;
  uint64_t length = 0;
  std::shared_ptr<SharedBlock> block;         // where the memory is a shared block
  std::shared_ptr<const GpuExport> exported;  // where it is on a device
  bool pinned = false;                        // host memory that is registered with the driver
  RegionAccess access = RegionAccess::kReadWrite;
  // The UCX mapping, while a peer has the key.
  mutable Mutex mapping_mutex = {};
  mutable std::weak_ptr<UcxMapping> mapping OH_GUARDED_BY(mapping_mutex) = {};

  bool for_batch() const { return access == RegionAccess::kBatch; }
  bool refuses(bool put) const { return put && access == RegionAccess::kReadOnly; }
};
// Set in the word of a kBatch region once it is taken. Set by compare-and-swap, so that either its
// sender takes it or its receive withdraws it.
inline constexpr uint64_t kTakenBit = uint64_t{1} << 63;
// Set once the sender has written the whole batch: the word then holds the size and the path. Set
// by compare-and-swap, too, so that either the batch is whole or its receive gives up.
inline constexpr uint64_t kWholeBit = uint64_t{1} << 62;
inline constexpr int kWholePathShift = 56;
inline constexpr uint64_t whole_word(uint64_t size, oh_path path) {
  return kTakenBit | kWholeBit | static_cast<uint64_t>(path) << kWholePathShift | size;
}

// The contents of a descriptor.
struct RegionDescriptor {
  static constexpr size_t kMaxBytes = 64 * 1024 * 1024;
  Id process{};
  Id endpoint{};
  uint32_t index = 0;
  uint64_t version = 0;
  ExportRecord record;
  bool read_only = false;

  Bytes encode() const;
  static Result<RegionDescriptor> decode(ByteView bytes);
};

// The one bounds check of all offsets: true when [offset, offset + size) lies within `length`
// bytes.
inline constexpr bool slice_fits(uint64_t offset, uint64_t size, uint64_t length) {
  return offset <= length && size <= length - offset;
}

// Computes the offset of block `index` of a strided batch. False: it does not fit into 64 bits.
inline bool stride_to(uint64_t base, uint64_t stride, uint64_t index, uint64_t* offset) {
  uint64_t step;
  return !__builtin_mul_overflow(index, stride, &step) &&
         !__builtin_add_overflow(base, step, offset);
}
// Bounds of the blocks of a batch, for the errors below: `length` bytes of the memory called
// `name`.
struct Extent {
  uint64_t length;
  const char* name;
};
Status block_beyond_offsets(uint64_t index);
Status block_outside(uint64_t index, uint64_t offset, uint64_t size, const Extent& extent);

class RegionTable {
 public:
  explicit RegionTable(const ControlPage& page) : page_(page) {}

  Result<std::shared_ptr<RegionRecord>> add(void* base, uint64_t length,
                                            std::shared_ptr<const GpuExport> exported,
                                            RegionAccess access = RegionAccess::kReadWrite,
                                            bool pinned = false);
  // Removes the region from the control page: no operation begins on it any more. Returns its
  // previous word; 0 if it was not valid.
  uint64_t retire(const RegionRecord& region);
  void retire_all();
  // Retires a kBatch region that no sender has taken; false: it is taken, or not valid.
  bool withdraw(const RegionRecord& region);
  // Returns the valid region, or nullptr. Taking::kYes also takes a kBatch region for its sender.
  enum class Taking : uint8_t { kYes, kNo };
  std::shared_ptr<RegionRecord> find(uint32_t index, uint64_t version,
                                     Taking taking = Taking::kYes) const;
  size_t size() const;

 private:
  bool is_valid(uint32_t index, uint64_t version) const OH_REQUIRES(mutex_) {
    return index < regions_.size() && regions_[index] && regions_[index]->version == version;
  }
  uint64_t remove(uint32_t index) OH_REQUIRES(mutex_);

  const ControlPage& page_;
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<RegionRecord>> regions_ OH_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ OH_GUARDED_BY(mutex_);
  uint64_t last_version_ OH_GUARDED_BY(mutex_) = 0;
};

}  // namespace oh
