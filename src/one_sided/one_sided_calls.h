// SPDX-License-Identifier: Apache-2.0
//
// OneSidedCalls: the entry points of one-sided operations: puts and gets, signals, notifications,
// the keys of remote regions, and the retirement of local ones.
//
// Threading: any thread; the link's lock is taken inside.
#pragma once

#include "link/connection.h"
#include "link/link.h"
#include "link/regions.h"
#include "one_sided/one_sided.h"
#include "path/rma/rma_path.h"

namespace oh {

class OneSidedCalls {
 public:
  OneSidedCalls(Link& link, OneSided& one_sided, RegionTable& regions)
      : link_(link), one_sided_(one_sided), regions_(regions) {}
  // Called once the paths exist.
  void open() { rma_ = static_cast<RmaPath*>(one_sided_.path(PathName::kRma)); }

  // Puts and gets: see OneSided.
  Status move(Request* request, const Move& move);
  Result<std::unique_ptr<BatchPlan>> plan(const Move& move) { return one_sided_.plan(move); }
  Status post_notification(Request* request, ByteView bytes);
  void notification_collected(size_t bytes);
  Status signal(uint32_t slot, uint64_t count);
  bool take_signals(uint32_t slot, uint64_t count);
  bool has_signals(uint32_t slot, uint64_t count);

  // Over UCX: count the user's handles of a remote region, which keep its key.
  void attach_key(const RemoteTarget& target);
  void detach_key(const RemoteTarget& target);
  RemoteKeys& keys() { return rma_->keys(); }
  bool uses_rma() const { return rma_ && rma_->keys().use() != RmaUse::kOff; }
  // Maps a local region whose key the peer has requested. False: no key is requested. Called with
  // the lock held, and releases it meanwhile: pinning memory takes long.
  bool map_for_keys() OH_NO_THREAD_ANALYSIS;

  // OH_ERR_RETIRED: a remote region is known to be deregistered.
  Status still_registered(const RemoteTarget& target) const {
    return one_sided_.copies().still_registered(target);
  }
  // A local region is retired: retire_region() stops the work on it, wait_until_retired() waits
  // until it is no longer accessed. `silent_for` returns for how many ns the peer has not answered.
  void retire_region(const RegionRecord& region);
  Status wait_until_retired(const RegionRecord& region, Deadline deadline,
                            const std::function<int64_t()>& silent_for);
  // Waits until no earlier one-sided operation of the peer accesses local memory. False: the
  // deadline has passed. `by_engines`: engines of the peer may access it. A hang-up does not prove
  // then that they have stopped, only the end of the peer's process does.
  bool wait_until_outside(Deadline deadline, bool by_engines = false);
  bool is_open_to_engines(const RegionRecord& region) const;

 private:
  bool wait_until_left(Deadline deadline);

  Link& link_;
  OneSided& one_sided_;
  RegionTable& regions_;
  RmaPath* rma_ = nullptr;
};

}  // namespace oh
