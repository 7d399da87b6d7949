// SPDX-License-Identifier: Apache-2.0
//
// Imports: the blocks of one peer's memory that are mapped here, by the peer's number. Device
// memory is bounded: the least recently used block is evicted, unless an operation uses it or a
// remote region stands for it. A block that is needed but not mapped is asked for.
//
// Threading: guarded by the link's lock. Blocks that are handed out go without it: that unmaps.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "memory/import_cache.h"

namespace oh {

class Imports {
 public:
  using Block = std::shared_ptr<ImportedBlock>;
  static constexpr size_t kMost = 16384;  // each is a mapping, of which a process has some 65,000

  // How many blocks of device memory stay mapped.
  void set_limit(size_t limit) { limit_ = limit; }

  // Null: not there.
  Block find(uint32_t number);
  bool failed(uint32_t number) const;
  bool full() const { return mapped_ >= kMost; }
  // Those of device memory.
  std::vector<Block> on_device() const;
  // What came of a block that the peer handed over; null: it cannot be mapped. Returns the one that
  // has to go for it, if any.
  Block add(uint32_t number, Block block);
  // The peer's memory is about to go.
  Block retire(uint32_t number);
  // Whether a block that is missing has to be asked for now: not while it may be on its way.
  bool should_ask(uint32_t number);
  // Forgets that it could not be mapped: it is asked for again.
  void forget_failure(uint32_t number);

 private:
  struct Entry {
    Block block;  // null: missing, or failed
    bool failed = false;
    int64_t ask_at = 0;  // of a missing one
    uint64_t used = 0;
  };
  Block make_room();

  std::unordered_map<uint32_t, Entry> entries_;
  size_t mapped_ = 0;
  size_t on_device_ = 0;
  size_t limit_ = kMost;
  uint64_t uses_ = 0;
};

}  // namespace oh
