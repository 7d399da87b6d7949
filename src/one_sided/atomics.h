// SPDX-License-Identifier: Apache-2.0
//
// Atomics: fetch-and-add and compare-and-swap on 8 bytes of the peer's registered host memory, and
// the peer's on local memory. CPU instructions execute all of them: on this side where the memory
// is mapped, else at its owner. So the operations of all peers and of the owner itself are atomic
// with respect to each other, whatever their paths.
//
//   kFetch: slot = name, region, tag = version, address, number = kind, length = value,
//           op = expected
//                        ◀─ kFetched: slot = name, length = previous value, or aux = error
//
// Threading: any thread, takes the link's lock; on_frame() is called with it.
#pragma once

#include <map>
#include <optional>

#include "link/link.h"
#include "link/regions.h"
#include "one_sided/immediate_copies.h"

namespace oh {

// Checks that the 8 bytes at `offset`, which lie within the region, are aligned. OH_ERR_INVALID if
// not.
Status check_word(const RemoteTarget& target, uint64_t offset);

class Atomics {
 public:
  Atomics(Link& link, const RegionTable& regions, const ImmediateCopies& copies)
      : link_(link), regions_(regions), copies_(copies) {}

  // Whether the calling thread can access the memory directly.
  bool reaches(const RemoteTarget& target) const {
    return !target.on_device && (target.imported || (link_.within_process() && link_.segment));
  }
  // Applies the operation to a region that it reaches(). Returns the previous value.
  Result<uint64_t> apply(const RemoteTarget& target, uint64_t offset, const AtomicOp& op) const {
    return copies_.apply(target, offset, op);
  }
  // Starts the operation on any region: directly if it reaches() the memory, else by a request to
  // the owner. Returns a name for take() or abandon().
  Result<uint32_t> begin(const RemoteTarget& target, uint64_t offset, const AtomicOp& op);
  // Requests the operation from the owner, for a region that it does not reach.
  Result<uint32_t> post(const RemoteTarget& target, uint64_t offset, const AtomicOp& op);
  // The answer, if it has arrived: the previous value, or an error. Releases the name then.
  std::optional<Result<uint64_t>> take(uint32_t name);
  void abandon(uint32_t name);

  // With the lock held.
  Status on_frame(const Frame& frame);

 private:
  // Allocates a name. `answer`: the answer, if it is known already.
  uint32_t name(std::optional<Result<uint64_t>> answer);
  Status on_fetch(const Frame& frame);
  oh_status carry_out(const Frame& frame, uint64_t* before) const;

  Link& link_;
  const RegionTable& regions_;
  const ImmediateCopies& copies_;
  // By name; no value: the answer has not arrived.
  std::map<uint32_t, std::optional<Result<uint64_t>>> posted_;
  uint32_t last_ = 0;
};

}  // namespace oh
