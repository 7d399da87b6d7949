// SPDX-License-Identifier: Apache-2.0
#include "memory/shared_heap.h"

#include <mutex>

#include "platform/os/fork.h"

namespace oh {

SharedHeap& SharedHeap::instance() {
  // A child of fork() gets a new instance: it keeps the mappings but has none of the descriptors.
  return of_this_process([] { return new SharedHeap; });
}

Result<std::shared_ptr<SharedBlock>> SharedHeap::allocate(uint64_t size) {
  auto block = std::make_shared<SharedBlock>();
  OH_ASSIGN_OR_RETURN(static_cast<SharedMemory&>(*block),
                      make_shared_memory("onehop-block", size ? size : 1));
  std::unique_lock lock(mutex_);
  block->number = ++last_number_;
  by_base_[block->base()] = block;
  by_number_[block->number] = block;
  count_.store(by_base_.size(), std::memory_order_relaxed);
  return block;
}

Status SharedHeap::free(void* data) {
  std::shared_ptr<SharedBlock> block;
  std::vector<Listener> listeners;
  {
    std::unique_lock lock(mutex_);
    auto found = by_base_.find(reinterpret_cast<uint64_t>(data));
    if (found == by_base_.end()) {
      return error(OH_ERR_INVALID, "%p is not the start of a shared block", data);
    }
    block = found->second;
    by_base_.erase(found);
    by_number_.erase(block->number);
    count_.store(by_base_.size(), std::memory_order_relaxed);
    for (auto& [key, listener] : listeners_) listeners.push_back(listener);
  }
  for (Listener& listener : listeners) listener(block->number);
  return {};
}

std::shared_ptr<SharedBlock> SharedHeap::find(const void* data, uint64_t size) const {
  if (empty()) return nullptr;
  auto begin = reinterpret_cast<uint64_t>(data);
  std::shared_lock lock(mutex_);
  auto after = by_base_.upper_bound(begin);
  if (after == by_base_.begin()) return nullptr;
  const std::shared_ptr<SharedBlock>& block = std::prev(after)->second;
  uint64_t offset = begin - block->base();
  return offset < block->size() && size <= block->size() - offset ? block : nullptr;
}

std::shared_ptr<SharedBlock> SharedHeap::find(uint32_t number) const {
  std::shared_lock lock(mutex_);
  auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

void SharedHeap::add_listener(const void* key, Listener listener) {
  std::unique_lock lock(mutex_);
  listeners_[key] = std::move(listener);
}

void SharedHeap::remove_listener(const void* key) {
  std::unique_lock lock(mutex_);
  listeners_.erase(key);
}

}  // namespace oh
