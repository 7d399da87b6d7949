// SPDX-License-Identifier: Apache-2.0
//
// OpTable: IDs of the operations that the peer refers to. An ID is an index and a generation, so
// that a late or forged ID finds nothing.
//
// Threading: guarded by the link's lock.
#pragma once

#include <cstdint>
#include <vector>

namespace oh {

template <typename T>
class OpTable {
 public:
  // Returns the ID of `item`, never 0.
  uint64_t add(T* item) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(entries_.size()));
      entries_.push_back({});
    }
    uint32_t index = free_.back();
    free_.pop_back();
    Entry& entry = entries_[index];
    entry.item = item;
    ++entry.generation;
    return static_cast<uint64_t>(entry.generation) << 32 | index;
  }
  T* find(uint64_t op) const {
    auto index = static_cast<uint32_t>(op);
    if (index >= entries_.size()) return nullptr;
    const Entry& entry = entries_[index];
    return entry.generation == static_cast<uint32_t>(op >> 32) ? entry.item : nullptr;
  }
  void remove(uint64_t op) {
    if (!find(op)) return;
    auto index = static_cast<uint32_t>(op);
    entries_[index].item = nullptr;
    free_.push_back(index);
  }
  // `visit` may remove the item it is given.
  template <typename Visit>
  void for_each(Visit visit) {
    for (size_t index = 0; index < entries_.size(); ++index) {
      if (T* item = entries_[index].item) visit(item);
    }
  }

 private:
  struct Entry {
    T* item = nullptr;
    uint32_t generation = 0;
  };
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
};

}  // namespace oh
