// SPDX-License-Identifier: Apache-2.0
//
// ImportPlaces: the host's copy of an import table (onehop/detail/posting.h), which kernels read
// while it changes. It decides which entries are written, and in which order.
//
// Kernels look for a number from its own place on: at most kMostLooks places, and not beyond an
// empty one. So an entry lies that near to its own place, without an empty place before it, and no
// place stays taken by an entry that was removed. An entry that moves is written to its new place
// before its old one is overwritten; a kernel that looks meanwhile may miss it, and stages.
//
// Threading: none; its owner locks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace oh {

class ImportPlaces {
 public:
  struct Entry {
    uint64_t number = 0;  // of the peer's region; 0: none
    uint64_t size = 0;
    uint64_t base = 0;
  };
  struct Write {
    uint32_t place;
    Entry entry;
  };
  explicit ImportPlaces(uint32_t shift) : entries_(size_t{1} << shift) {}

  // What to write. Nothing: it is known, or no place is near enough.
  std::optional<Write> add(const Entry& entry);
  // What to write, in this order: the first write overwrites the number. Empty: it is not known.
  std::vector<Write> remove(uint64_t number);

 private:
  // The place of the number or, where it is not known, the empty place that ends the search.
  uint32_t find(uint64_t number) const;
  uint32_t distance(uint64_t from, uint64_t to) const {
    return static_cast<uint32_t>((to - from) & (entries_.size() - 1));
  }

  std::vector<Entry> entries_;  // by place
};

}  // namespace oh
