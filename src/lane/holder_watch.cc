// SPDX-License-Identifier: Apache-2.0
#include "lane/holder_watch.h"

#include <algorithm>

#include "base/clock.h"

namespace oh {
namespace {
constexpr int64_t kFirstPause = 200 * kMicrosecond;
constexpr int64_t kMostPause = 20 * kMillisecond;
// Waiting kernels end within this time. Recording the event can invalidate a capture, so it is
// recorded only afterwards.
constexpr int64_t kGraceTime = 50 * kMillisecond;
}  // namespace

bool HolderWatch::is_over(const std::shared_ptr<cuda::Gpu>& gpu) {
  const int64_t now = now_ns();
  if (since_ == 0) since_ = now;
  if (all_.pending()) {
    Result<bool> complete = all_.is_complete();
    return complete.ok() && *complete;
  }
  if (now - since_ < kGraceTime) return false;
  since_ = now;  // also after a failure: retry later
  Result<cuda::Event> event = gpu->event_behind_all();
  if (event.ok()) all_ = After(gpu, *event, /*owned=*/true);
  return false;
}

int64_t HolderWatch::pause() {
  pause_ = pause_ == 0 ? kFirstPause : std::min(2 * pause_, kMostPause);
  return pause_;
}

}  // namespace oh
