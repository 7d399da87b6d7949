// SPDX-License-Identifier: Apache-2.0
//
// Object pool: blocks of 64 and a free list. It does not call the allocator once the working set is
// reached. Addresses stay valid as long as the pool.
//
// Threading: guarded by the owner of the pool.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace oh {

template <typename T>
class Pool {
 public:
  T* acquire() {
    if (free_.empty()) grow();
    T* object = free_.back();
    free_.pop_back();
    ++in_use_;
    return object;
  }
  void release(T* object) {
    free_.push_back(object);
    --in_use_;
  }
  size_t in_use() const { return in_use_; }

 private:
  static constexpr size_t kBlock = 64;
  void grow() {
    blocks_.push_back(std::make_unique<T[]>(kBlock));
    free_.reserve(blocks_.size() * kBlock);
    for (size_t i = kBlock; i-- > 0;) free_.push_back(&blocks_.back()[i]);
  }

  std::vector<std::unique_ptr<T[]>> blocks_;
  std::vector<T*> free_;
  size_t in_use_ = 0;
};

}  // namespace oh
