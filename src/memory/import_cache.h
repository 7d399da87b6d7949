// SPDX-License-Identifier: Apache-2.0
//
// Imported blocks: memory of other processes mapped here, by owner and number, one mapping each for
// the whole process however many peers use it. A mapping lives until its last reference goes.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "base/metrics.h"
#include "base/status.h"
#include "platform/os/handles.h"
#include "platform/os/process.h"

namespace oh {

struct ImportedBlock {
  virtual ~ImportedBlock() { g_metrics.imported_bytes.sub(counted); }
  uint32_t number = 0;
  uint64_t remote_base = 0;  // address in its owner
  uint8_t* local_base = nullptr;
  uint64_t size = 0;
  bool on_device = false;  // only the copy engine may touch it
  // Remote regions of the user's that stand for it: it is not unmapped to make room.
  std::atomic<uint32_t> attached{0};
  uint64_t counted = 0;  // bytes of it in the metrics

  // Once it is mapped.
  void count() {
    counted = size;
    g_metrics.imported_bytes.add(counted);
  }

  // The owner's address as one of ours, or nullptr unless all of [remote, remote + size) is inside.
  uint8_t* translate(uint64_t remote, uint64_t bytes) const {
    uint64_t offset = remote - remote_base;
    if (remote < remote_base || offset > size || bytes > size - offset) return nullptr;
    return local_base + offset;
  }
};

// A shared block of host memory.
struct ImportedHostBlock final : ImportedBlock {
  uint64_t device = 0;  // the file that is mapped
  uint64_t inode = 0;
  Mapping mapping;
};

class ImportCache {
 public:
  static ImportCache& instance();

  // Maps the block, or returns its existing mapping.
  Result<std::shared_ptr<ImportedBlock>> open(const Id& owner, uint32_t number,
                                              uint64_t remote_base, uint64_t size, int fd);
  // Mappings that are alive.
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<Id, uint32_t>, std::weak_ptr<ImportedHostBlock>> blocks_;
};

}  // namespace oh
