// SPDX-License-Identifier: Apache-2.0
//
// LaneNotices: the notice page in pinned memory. In it the host aborts waits of kernels, and
// kernels report errors to the host.
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
  // Call first. `page` is pinned and zero.
  void open(Page* page) { page_ = page; }

  // abort() ends all waits of kernels, on all lanes and signals. abort(lane, set) sets or clears
  // the abort word of one lane.
  void abort();
  void abort(uint32_t lane, bool set);
  // While set, kernels report each operation that the reset makes them refuse.
  void set_resetting(uint32_t lane, bool resetting);

  // Why a half of a lane has failed; ok: it has not.
  Status failure(uint32_t lane, LaneSide side) const;
  // An error that has not been returned yet; ok: there is none.
  Status take_error(const std::string& peer);
  // Adds the large messages that kernels put or staged, over all lanes.
  void count_large(Stats* stats) const;
  // Call before the lane begins a new epoch. Errors of the old epoch are still reported.
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
  Status unreported_ OH_GUARDED_BY(mutex_);  // of an ended epoch
};

}  // namespace oh
