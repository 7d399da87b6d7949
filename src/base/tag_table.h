// SPDX-License-Identifier: Apache-2.0
//
// State per tag: a hash table whose entries keep their address. A one-entry cache in front serves
// consecutive operations with the same tag.
//
// Threading: guarded by the owner of the table.
#pragma once

#include <cstdint>
#include <vector>

#include "base/pool.h"

namespace oh {

// `Entry` has `uint64_t tag`, `Entry* next_in_bucket`, `void reset()` and `bool idle() const`.
template <typename Entry>
class TagTable {
 public:
  TagTable() : buckets_(16, nullptr) {}

  Entry& get(uint64_t tag) {
    if (last_ && last_->tag == tag) return *last_;
    Entry* entry = lookup(tag);
    if (!entry) entry = insert(tag);
    last_ = entry;
    return *entry;
  }
  Entry* find(uint64_t tag) {
    if (last_ && last_->tag == tag) return last_;
    return lookup(tag);
  }
  size_t size() const { return size_; }

  template <typename Visit>
  void for_each(Visit visit) {
    for (Entry* entry : buckets_) {
      while (entry) {
        Entry* next = entry->next_in_bucket;
        visit(*entry);
        entry = next;
      }
    }
  }
  // Removes idle entries.
  void drop_idle() {
    last_ = nullptr;
    for (Entry*& head : buckets_) {
      Entry** link = &head;
      while (*link) {
        Entry* entry = *link;
        if (entry->idle()) {
          *link = entry->next_in_bucket;
          pool_.release(entry);
          --size_;
        } else {
          link = &entry->next_in_bucket;
        }
      }
    }
  }

 private:
  static uint64_t mix(uint64_t tag) {
    tag ^= tag >> 32;
    tag *= 0x9e3779b97f4a7c15ULL;
    return tag ^ (tag >> 29);
  }
  Entry*& bucket(uint64_t tag) { return buckets_[mix(tag) & (buckets_.size() - 1)]; }

  Entry* lookup(uint64_t tag) {
    for (Entry* entry = bucket(tag); entry; entry = entry->next_in_bucket) {
      if (entry->tag == tag) return entry;
    }
    return nullptr;
  }
  Entry* insert(uint64_t tag) {
    if (size_ >= buckets_.size()) grow();
    Entry* entry = pool_.acquire();
    entry->reset();
    entry->tag = tag;
    entry->next_in_bucket = bucket(tag);
    bucket(tag) = entry;
    ++size_;
    return entry;
  }
  void grow() {
    std::vector<Entry*> former(buckets_.size() * 2, nullptr);
    former.swap(buckets_);
    for (Entry* entry : former) {
      while (entry) {
        Entry* next = entry->next_in_bucket;
        entry->next_in_bucket = bucket(entry->tag);
        bucket(entry->tag) = entry;
        entry = next;
      }
    }
  }

  std::vector<Entry*> buckets_;
  Pool<Entry> pool_;
  size_t size_ = 0;
  Entry* last_ = nullptr;
};

}  // namespace oh
