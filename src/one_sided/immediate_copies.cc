// SPDX-License-Identifier: Apache-2.0
#include "one_sided/immediate_copies.h"

#include <utility>
#include <vector>

#include "base/fault.h"

namespace oh {
namespace {

// While a guard exists, the owner of the region does not report it as retired.
class AccessGuard {
 public:
  explicit AccessGuard(SegmentDirection& direction) : direction_(direction) {
    while (true) {
      uint64_t phase = direction_.access_phase.phase.load(std::memory_order_seq_cst);
      index_ = phase & 1;
      // seq_cst: announced before the region's version is checked; pairs with
      // OneSidedCalls::wait_until_outside().
      direction_.access.active[index_].fetch_add(1, std::memory_order_seq_cst);
      if (direction_.access_phase.phase.load(std::memory_order_seq_cst) == phase) return;
      direction_.access.active[index_].fetch_sub(1, std::memory_order_seq_cst);
    }
  }
  ~AccessGuard() { direction_.access.active[index_].fetch_sub(1, std::memory_order_seq_cst); }
  AccessGuard(const AccessGuard&) = delete;
  AccessGuard& operator=(const AccessGuard&) = delete;

 private:
  SegmentDirection& direction_;
  uint64_t index_ = 0;
};

class CopyCount {
 public:
  explicit CopyCount(std::atomic<uint32_t>& count) : count_(count) {
    count_.fetch_add(1, std::memory_order_seq_cst);
  }
  ~CopyCount() { count_.fetch_sub(1, std::memory_order_seq_cst); }
  CopyCount(const CopyCount&) = delete;
  CopyCount& operator=(const CopyCount&) = delete;

 private:
  std::atomic<uint32_t>& count_;
};

// The scope in which a thread accesses the peer's memory.
class Inside {
 public:
  // Counts the thread before check() reads the link's state. The end of the link sets the state
  // before it reads the counts.
  Inside(Link& link, std::atomic<uint32_t>& count)
      : link_(link), count_(count), guard_(link.segment->outgoing()) {}
  Status check() const {
    if (!link_.gone.load(std::memory_order_seq_cst) &&
        link_.segment->their_state() != SideState::kFailed) {
      return {};
    }
    return error(OH_ERR_PEER_LOST, "the link to %s has ended", link_.name.c_str());
  }

 private:
  Link& link_;
  CopyCount count_;
  AccessGuard guard_;
};

}  // namespace

Status ImmediateCopies::still_registered(const RemoteTarget& target) const {
  if (!page_ || page_->region(target.index).load(std::memory_order_seq_cst) == target.version) {
    return {};
  }
  return error(OH_ERR_RETIRED, "%s has deregistered the region, or dropped it", link_.name.c_str());
}

Result<std::shared_ptr<ImportedBlock>> ImmediateCopies::import_of(
    const RemoteTarget& target) const {
  OH_RETURN_IF_ERROR(still_registered(target));
  std::shared_ptr<ImportedBlock> import = target.import.lock();
  if (target.imported && !import) {
    return error(OH_ERR_RETIRED, "the memory of the region of %s is gone: attach it again",
                 link_.name.c_str());
  }
  return import;
}

Result<Part> ImmediateCopies::admit(const ChosenPart& chosen) const {
  const RemoteTarget& target = chosen.part->target;
  OH_ASSIGN_OR_RETURN(std::shared_ptr<ImportedBlock> import, import_of(target));
  return Part{target, std::move(import), *chosen.local, chosen.part->blocks};
}

Result<uint64_t> ImmediateCopies::apply(const RemoteTarget& target, uint64_t offset,
                                        const AtomicOp& op) const {
  const Inside inside(link_, copies_);
  OH_RETURN_IF_ERROR(inside.check());
  OH_ASSIGN_OR_RETURN(const std::shared_ptr<ImportedBlock> import, import_of(target));
  OH_FAULT_POINT("one_sided.copy");
  const uint64_t address = target.base + offset;
  auto* word = import ? reinterpret_cast<uint64_t*>(import->translate(address, sizeof(uint64_t)))
                      : reinterpret_cast<uint64_t*>(address);
  if (!word) return error(OH_ERR_RANGE, "the 8 bytes lie outside of the mapped memory");
  // The block's address comes from the peer, which may be faulty.
  if (!AtomicOp::fits(reinterpret_cast<uint64_t>(word))) {
    return error(OH_ERR_INVALID, "the block of %s is not aligned as its addresses say",
                 link_.name.c_str());
  }
  return op.apply(word);
}

Status ImmediateCopies::copy(std::span<const ChosenPart> chosen, const Move& move, oh_path* taken) {
  Immediate& path = *chosen.front().path->immediate();
  const Inside inside(link_, copies_);
  OH_RETURN_IF_ERROR(inside.check());
  // A plan always copies the blocks of all parts.
  const bool all = chosen.size() == move.parts.size();
  Movement movement{move.put, {}, 0, all ? move.plan : nullptr};
  for (const ChosenPart& each : chosen) movement.bytes += each.part->bytes;
  if (chosen.size() == 1) {
    OH_ASSIGN_OR_RETURN(const Part part, admit(chosen.front()));
    OH_FAULT_POINT("one_sided.copy");
    movement.parts = {&part, 1};
    OH_ASSIGN_OR_RETURN(*taken, path.copy(movement));
    return {};
  }
  // All are checked before the first byte moves.
  std::vector<Part> parts;
  parts.reserve(chosen.size());
  for (const ChosenPart& each : chosen) {
    OH_ASSIGN_OR_RETURN(Part part, admit(each));
    parts.push_back(std::move(part));
  }
  OH_FAULT_POINT("one_sided.copy");
  movement.parts = parts;
  OH_ASSIGN_OR_RETURN(*taken, path.copy(movement));
  return {};
}

}  // namespace oh
