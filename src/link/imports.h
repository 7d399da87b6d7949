// SPDX-License-Identifier: Apache-2.0
//
// Imports: the blocks of one peer's memory that are mapped here, by the peer's block number. Mapped
// device memory is bounded: the least recently used block is evicted, unless an operation uses it
// or a remote region is attached to it. A block that is needed but not mapped is requested from the
// peer.
//
// Threading: guarded by the link's lock. The caller drops returned blocks without it, since that
// unmaps them.
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
  static constexpr size_t kMost = 16384;  // each is a mapping; a process may have about 65,000

  // The most blocks of device memory that stay mapped.
  void set_limit(size_t limit) { limit_ = limit; }

  // Null: not mapped.
  Block find(uint32_t number);
  bool failed(uint32_t number) const;
  bool full() const { return mapped_ >= kMost; }
  // The mapped blocks of device memory.
  std::vector<Block> on_device() const;
  // Stores a block that the peer handed over; null: it cannot be mapped. Returns the block that it
  // replaces or evicts, if any.
  Block add(uint32_t number, Block block);
  // The peer is about to free the memory. Returns the block that was mapped, or null.
  Block retire(uint32_t number);
  // Whether to request a missing block now: not while it may be in flight.
  bool should_ask(uint32_t number);
  // Forgets that a block could not be mapped, so that it is requested again.
  void forget_failure(uint32_t number);

 private:
  struct Entry {
    Block block;  // null: missing, or failed
    bool failed = false;
    int64_t ask_at = 0;  // when to request a missing block
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
