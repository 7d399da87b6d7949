// SPDX-License-Identifier: Apache-2.0
//
// Atomic operations of one thread on 8 bytes of a peer's memory, at system scope. They are atomic
// with those of every GPU that reaches the memory over links with native atomics.
//
// Threading: any thread. Ownership: none.
#pragma once

#include "onehop/detail/word.h"
#include "onehop/lane.h"

namespace onehop::detail {

// Checks that the 8 bytes at `offset` lie within the memory and are aligned.
ONEHOP_PURE oh_lane_fault check_word(const oh_remote_memory& remote, uint64_t offset) {
  if (remote.size < sizeof(uint64_t) || offset > remote.size - sizeof(uint64_t)) {
    return OH_LANE_RANGE;
  }
  return (remote.base + offset) % sizeof(uint64_t) == 0 ? OH_LANE_OK : OH_LANE_MISALIGNED;
}

// `before`, if not null, gets the previous value.
template <typename A>
ONEHOP_PROTOCOL oh_lane_fault fetch_add(const oh_remote_memory& remote, uint64_t offset,
                                        uint64_t value, uint64_t* before) {
  const oh_lane_fault fault = check_word(remote, offset);
  if (fault != OH_LANE_OK) return fault;
  const uint64_t had =
      A::fetch_add_system(reinterpret_cast<uint64_t*>(remote.base + offset), value);
  if (before != nullptr) *before = had;
  return OH_LANE_OK;
}

template <typename A>
ONEHOP_PROTOCOL oh_lane_fault compare_swap(const oh_remote_memory& remote, uint64_t offset,
                                           uint64_t expected, uint64_t value, uint64_t* before) {
  const oh_lane_fault fault = check_word(remote, offset);
  if (fault != OH_LANE_OK) return fault;
  const uint64_t had =
      A::compare_swap_system(reinterpret_cast<uint64_t*>(remote.base + offset), expected, value);
  if (before != nullptr) *before = had;
  return OH_LANE_OK;
}

}  // namespace onehop::detail
