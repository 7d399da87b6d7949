// SPDX-License-Identifier: Apache-2.0
//
// ImportPlaces: the host's copy of an import table (onehop/detail/posting.h), which kernels read
// while it changes. It decides which entries are written, and in which order.
//
// A lookup starts at the number's home place, probes at most kMostLooks places, and stops at an
// empty one. So each entry lies within that distance of its home place, with no empty place in
// between, and a removed entry leaves no tombstone. A moved entry is written to its new place
// before its old place is overwritten. A concurrent lookup may miss it; that message is then
// staged.
//
// Threading: none; the owner locks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace oh {

class ImportPlaces {
 public:
  struct Entry {
    uint64_t number = 0;  // of the peer's region; 0: the place is empty
    uint64_t size = 0;
    uint64_t base = 0;
  };
  struct Write {
    uint32_t place;
    Entry entry;
  };
  explicit ImportPlaces(uint32_t shift) : entries_(size_t{1} << shift) {}

  bool has(uint64_t number) const { return entries_[find(number)].number != 0; }
  // Returns the write to issue. None: the number is already in the table, or no free place is near
  // enough.
  std::optional<Write> add(const Entry& entry);
  // Returns the writes to issue, in this order; the first one overwrites the removed entry. Empty:
  // the number is not in the table.
  std::vector<Write> remove(uint64_t number);

 private:
  // The place of the number; if it is not in the table, the empty place that ends the search.
  uint32_t find(uint64_t number) const;
  uint32_t distance(uint64_t from, uint64_t to) const {
    return static_cast<uint32_t>((to - from) & (entries_.size() - 1));
  }

  std::vector<Entry> entries_;  // indexed by place
};

}  // namespace oh
