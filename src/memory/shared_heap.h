// SPDX-License-Identifier: Apache-2.0
//
// Shared blocks: memory that this process can hand to its peers (onehop.empty, oh_shared_alloc), so
// that any transfer from or to it is one copy by plain memory access, whatever the kernel permits.
// Where memfds are forbidden no peer shares memory with this process: blocks are memory like any.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "platform/os/handles.h"

namespace oh {

struct SharedBlock : SharedMemory {
  uint32_t number = 0;  // unique in this process, never used again; 0 means none
  uint64_t base() const { return reinterpret_cast<uint64_t>(mapping.data()); }
  uint64_t size() const { return mapping.size(); }
};

class SharedHeap {
 public:
  static SharedHeap& instance();

  Result<std::shared_ptr<SharedBlock>> allocate(uint64_t size);
  // Tells the listeners, then forgets the block; its memory goes when the last user lets go.
  Status free(void* data);
  // The block that holds all of [data, data + size), or nullptr.
  std::shared_ptr<SharedBlock> find(const void* data, uint64_t size) const;
  std::shared_ptr<SharedBlock> find(uint32_t number) const;
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }

  // Called for each block that is freed, with its number.
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
