// SPDX-License-Identifier: Apache-2.0
//
// Shared blocks: memory that peers on the host can map (onehop.empty, oh_shared_alloc). A transfer
// from or to it is one copy by plain memory access and needs no permission of the kernel. Where
// memfds are forbidden, blocks are ordinary memory that peers cannot map.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "memory/host_pin.h"
#include "platform/os/handles.h"

namespace oh {

struct SharedBlock : SharedMemory {
  SharedBlock() = default;
  ~SharedBlock() { host_pin.leave(std::move(mapping)); }
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;
  // See ImportedBlock::pin().
  std::shared_ptr<cuda::Pinned> pin(const std::shared_ptr<cuda::Gpu>& gpu) {
    return host_pin.pin(gpu, mapping);
  }
  uint32_t number = 0;  // unique in this process, never reused; 0 means none
  uint64_t base() const { return reinterpret_cast<uint64_t>(mapping.data()); }
  uint64_t size() const { return mapping.size(); }
  HostPin host_pin;
};

class SharedHeap {
 public:
  static SharedHeap& instance();

  Result<std::shared_ptr<SharedBlock>> allocate(uint64_t size);
  // Removes the block, then calls the listeners. Its memory is unmapped with the last reference.
  // OH_ERR_INVALID: `data` is not the start of a block.
  Status free(void* data);
  // The block that contains [data, data + size), or nullptr.
  std::shared_ptr<SharedBlock> find(const void* data, uint64_t size) const;
  std::shared_ptr<SharedBlock> find(uint32_t number) const;
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }

  // Called for each freed block, with its number.
  using Listener = std::function<void(uint32_t)>;
  void add_listener(const void* key, Listener listener);
  void remove_listener(const void* key);

 private:
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, std::shared_ptr<SharedBlock>> by_base_;
  std::unordered_map<uint32_t, std::shared_ptr<SharedBlock>> by_number_;
  std::map<const void*, Listener> listeners_;
  std::atomic<size_t> count_{0};
  uint32_t last_number_ = 0;
};

}  // namespace oh
