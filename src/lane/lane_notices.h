// SPDX-License-Identifier: Apache-2.0
//
// LaneNotices: the page of notices in pinned memory. The host ends the waits of kernels by it;
// kernels report errors in it.
//
// Threading: any thread.
#pragma once

#include <string>

#include "base/status.h"
#include "base/sync.h"
#include "kernels/stream.h"
#include "link/stats.h"

namespace oh {

enum class LaneSide : uint32_t { kSend = 0, kRecv = 1 };

class LaneNotices {
 public:
  // One for each lane, and one for signals, which belong to no lane.
  static constexpr uint32_t kCount = OH_LANES + 1;
  using Page = onehop::detail::LaneNotice[kCount];
  // Before anything else: zero, and pinned.
  void open(Page* page) { page_ = page; }

  // Ends every wait of kernels: of all lanes and signals, or begins or stops to do so for one lane.
  void abort();
  void abort(uint32_t lane, bool set);
  // Kernels report an operation that they meet while the lane is being reset.
  void set_resetting(uint32_t lane, bool resetting);

  // Why a half of a lane has failed; ok: it has not.
  Status failure(uint32_t lane, LaneSide side) const;
  // The first error since the last call; ok: there was none.
  Status take_error(const std::string& peer);
  // Adds how kernels sent large messages, of all lanes.
  void count_large(Stats* stats) const;
  // Before a new epoch of the lane. Errors of the old one are still reported.
  void clear(uint32_t lane);

 private:
  onehop::detail::LaneNotice& notice(uint32_t lane) const { return (*page_)[lane]; }
  Status take_unreported();
  Status take_failure(uint32_t lane, uint32_t side);
  Status take_warning(uint32_t lane, uint32_t side);
  Status take_signal_warning();

  Page* page_ = nullptr;
  Mutex mutex_;
  bool reported_[OH_LANES][2] OH_GUARDED_BY(mutex_) = {};
  Status unreported_ OH_GUARDED_BY(mutex_);  // of an epoch that has ended
};

}  // namespace oh
