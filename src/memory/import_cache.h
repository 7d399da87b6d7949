// SPDX-License-Identifier: Apache-2.0
//
// Imported blocks: memory of other processes that this process maps, by owner and number. All peers
// share one mapping of a block, which lives until its last reference is released.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/metrics.h"
#include "base/status.h"
#include "memory/host_pin.h"
#include "platform/os/handles.h"
#include "platform/os/process.h"

namespace oh {

struct ImportedBlock {
  virtual ~ImportedBlock() { g_metrics.imported_bytes.sub(counted); }
  uint32_t number = 0;
  uint64_t remote_base = 0;  // address in the owner's process
  uint8_t* local_base = nullptr;
  uint64_t size = 0;
  bool on_device = false;  // only the copy engine may access it
  // Attached remote regions of the user in this block. While not zero it is not evicted.
  std::atomic<uint32_t> attached{0};
  uint64_t counted = 0;  // its bytes in the metrics

  // Adds it to the metrics. Call it once, after it was mapped.
  void count() {
    counted = size;
    g_metrics.imported_bytes.add(counted);
  }

  // Host memory: registers it for the GPU's engines and kernels (host_pin.h). Null: it cannot be,
  // or the memory is a device's. Calls the driver.
  virtual std::shared_ptr<cuda::Pinned> pin(const std::shared_ptr<cuda::Gpu>& /*gpu*/) {
    return nullptr;
  }

  // Translates the owner's address to a local one; nullptr unless [remote, remote + bytes) is
  // inside the block.
  uint8_t* translate(uint64_t remote, uint64_t bytes) const {
    uint64_t offset = remote - remote_base;
    if (remote < remote_base || offset > size || bytes > size - offset) return nullptr;
    return local_base + offset;
  }
};

// A shared block of host memory.
struct ImportedHostBlock final : ImportedBlock {
  ~ImportedHostBlock() override { host_pin.leave(std::move(mapping)); }
  std::shared_ptr<cuda::Pinned> pin(const std::shared_ptr<cuda::Gpu>& gpu) override {
    return host_pin.pin(gpu, mapping);
  }
  uint64_t device = 0;  // identity of the mapped file, with inode
  uint64_t inode = 0;
  Mapping mapping;
  HostPin host_pin;
};

class ImportCache {
 public:
  static ImportCache& instance();

  // Maps the block, or returns its existing mapping. OH_ERR_PROTOCOL: `fd` is another file than the
  // one mapped under this number.
  Result<std::shared_ptr<ImportedBlock>> open(const Id& owner, uint32_t number,
                                              uint64_t remote_base, uint64_t size, int fd);
  // Number of live mappings.
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<Id, uint32_t>, std::weak_ptr<ImportedHostBlock>> blocks_;
};

}  // namespace oh
