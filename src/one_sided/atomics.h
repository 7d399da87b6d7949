// SPDX-License-Identifier: Apache-2.0
//
// Atomics: fetch-and-add and compare-and-swap on 8 bytes of the peer's registered host memory, and
// the same for the peer on ours. CPU instructions carry all of them out: here where the memory is
// mapped, else at its owner. So those of all peers and of the owner itself are atomic towards each
// other, whatever their paths.
//
//   kFetch: slot = name, region, tag = version, address, number = kind, length = value, op =
//   expected
//                                      ◀─ kFetched: slot = name, length = what was there, or aux =
//                                      why not
//
// Threading: any thread; the link's lock is taken inside, but for on_frame().
#pragma once

#include <map>
#include <optional>

#include "link/link.h"
#include "link/regions.h"
#include "one_sided/immediate_copies.h"

namespace oh {

// That the 8 bytes at `offset`, which lie within the region, are aligned.
Status check_word(const RemoteTarget& target, uint64_t offset);

class Atomics {
 public:
  Atomics(Link& link, const RegionTable& regions, const ImmediateCopies& copies)
      : link_(link), regions_(regions), copies_(copies) {}

  // Whether the calling thread reaches the memory.
  bool reaches(const RemoteTarget& target) const {
    return !target.on_device && (target.imported || (link_.within_process() && link_.segment));
  }
  // For a region that it reaches: what was there.
  Result<uint64_t> apply(const RemoteTarget& target, uint64_t offset, const AtomicOp& op) const {
    return copies_.apply(target, offset, op);
  }
  // For any region: asks the owner where it is not reached. Returns a name, to be taken or
  // abandoned.
  Result<uint32_t> begin(const RemoteTarget& target, uint64_t offset, const AtomicOp& op);
  // For any other than those it reaches.
  Result<uint32_t> post(const RemoteTarget& target, uint64_t offset, const AtomicOp& op);
  // The answer, if it has come: what was there, or why nothing was done.
  std::optional<Result<uint64_t>> take(uint32_t name);
  void abandon(uint32_t name);

  // With the lock held.
  Status on_frame(const Frame& frame);

 private:
  // Of what is posted from now on; the answer, where it is there already.
  uint32_t name(std::optional<Result<uint64_t>> answer);
  Status on_fetch(const Frame& frame);
  oh_status carry_out(const Frame& frame, uint64_t* before) const;

  Link& link_;
  const RegionTable& regions_;
  const ImmediateCopies& copies_;
  // By name; no value: the answer has not come.
  std::map<uint32_t, std::optional<Result<uint64_t>>> posted_;
  uint32_t last_ = 0;
};

}  // namespace oh
