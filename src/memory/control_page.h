// SPDX-License-Identifier: Apache-2.0
//
// The control page of an endpoint: shared memory that all its peers on the host map. It holds the
// doorbell that they ring when the endpoint sleeps, and the versions of its regions, by which a
// one-sided operation detects a deregistered region.
//
//   | doorbell: rings 4 | sleepers 4 | … 4 KiB | region 0: version 8 | region 1 | … (sparse) |
//
// Threading: all shared words are atomic.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "base/sync.h"
#include "platform/os/handles.h"
#include "platform/os/os.h"

namespace oh {

// Wakes a sleeping thread. The sleeper announces itself, reads the count of rings, checks for work
// once more, and sleeps until the count changes. The waker publishes work, then checks for
// sleepers, with a full fence between: one of the two sees the other.
struct Doorbell {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleepers;

  void ring() {
    if (sleepers.load(std::memory_order_seq_cst) != 0) ring_always();
  }
  // Rings even if no sleeper has announced itself: for a change that found_work() does not see.
  void ring_always() {
    rings.fetch_add(1, std::memory_order_seq_cst);
    os().futex_wake(reinterpret_cast<uint32_t*>(&rings));
  }
  // Sleeps at most `timeout_ns` unless `found_work` (called after announcing) returns true.
  template <typename FoundWork>
  void sleep(int64_t timeout_ns, FoundWork found_work) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    uint32_t seen = rings.load(std::memory_order_seq_cst);
    full_fence();  // announce before the check; pairs with the fence between publishing and ring()
    if (!found_work()) os().futex_wait(reinterpret_cast<uint32_t*>(&rings), seen, timeout_ns);
    sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
};

class ControlPage {
 public:
  static constexpr uint32_t kMaxRegions = 1 << 21;
  static constexpr uint64_t kSize = 4096 + uint64_t{kMaxRegions} * 8;

  // Creates the local page. It is sparse: only pages with region versions in use occupy memory.
  static Result<ControlPage> create();
  // Maps a peer's page.
  static Result<ControlPage> open(UniqueFd fd);

  Doorbell& doorbell() const { return *reinterpret_cast<Doorbell*>(memory_.mapping.data()); }
  // The version of region `index`, zero when there is none. Precondition: index < kMaxRegions.
  std::atomic<uint64_t>& region(uint32_t index) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(memory_.mapping.data() + 4096)[index];
  }
  int fd() const { return memory_.fd.get(); }
  // Why peers cannot map it; ok if they can.
  const Status& why_private() const { return memory_.why_private; }

 private:
  SharedMemory memory_;
};

}  // namespace oh
