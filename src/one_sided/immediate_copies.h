// SPDX-License-Identifier: Apache-2.0
//
// ImmediateCopies: puts and gets of one link whose bytes the calling thread copies, guarded against
// the region being retired and the link being lost meanwhile.
//
// Threading: any thread, without the link's lock.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "link/link.h"
#include "memory/control_page.h"
#include "one_sided/move.h"

namespace oh {

// An atomic operation on 8 bytes, in the byte order of the host.
struct AtomicOp {
  enum class Kind : uint32_t { kAdd = 1, kCompareSwap = 2 };
  Kind kind = Kind::kAdd;
  uint64_t value = 0;
  uint64_t expected = 0;  // of kCompareSwap

  static bool fits(uint64_t address) { return address % sizeof(uint64_t) == 0; }
  // Returns the previous value. seq_cst, as users expect of an operation that names no order.
  uint64_t apply(uint64_t* word) const {
    std::atomic_ref<uint64_t> place(*word);
    if (kind == Kind::kAdd) return place.fetch_add(value);
    uint64_t before = expected;
    place.compare_exchange_strong(before, value);
    return before;
  }
};

class ImmediateCopies {
 public:
  explicit ImmediateCopies(Link& link) : link_(link) {}
  // Called before the link is used. `page`: the peer's control page, which lists its valid regions.
  void open(std::shared_ptr<const ControlPage> page) { page_ = std::move(page); }
  // OH_ERR_RETIRED: the peer's control page shows that the region is deregistered. OK if there is
  // no page.
  Status still_registered(const RemoteTarget& target) const;

  // Copies parts that take the same immediate path. `taken`: the path to report for them.
  Status copy(std::span<const ChosenPart> chosen, const Move& move, oh_path* taken);
  // Checks that the region is valid, and holds its mapping.
  Result<Part> admit(const ChosenPart& chosen) const;
  // Applies an atomic operation to host memory that is mapped here or belongs to this process.
  // Returns the previous value.
  Result<uint64_t> apply(const RemoteTarget& target, uint64_t offset, const AtomicOp& op) const;
  // Whether a thread is in copy() or apply().
  bool busy() const { return copies_.load(std::memory_order_seq_cst) != 0; }

 private:
  // Null where the region is not mapped.
  Result<std::shared_ptr<ImportedBlock>> import_of(const RemoteTarget& target) const;

  Link& link_;
  std::shared_ptr<const ControlPage> page_;
  mutable std::atomic<uint32_t> copies_{0};
};

}  // namespace oh
