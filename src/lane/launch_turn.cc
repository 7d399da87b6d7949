// SPDX-License-Identifier: Apache-2.0
#include "lane/launch_turn.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace oh {

bool LaunchTurn::is_through(cuda::Gpu& gpu) const {
  cuda::Event event = nullptr;
  {
    MutexLock lock(mutex_);
    event = event_;
  }
  if (!event) return true;
  Result<bool> complete = gpu.is_complete(event);
  return !complete.ok() || *complete;
}

void LaunchTurn::give_back(cuda::Gpu& gpu) {
  MutexLock lock(mutex_);
  if (event_) gpu.give_event(std::exchange(event_, nullptr));
}

Status LaunchTurn::follow(cuda::Gpu& gpu, const Stream& stream) const {
  cuda::Event event = nullptr;
  {
    MutexLock lock(mutex_);
    if (!stream.id || last_ != stream.id) event = event_;
  }
  return event ? gpu.wait_event(stream.handle, event) : Status();
}

Status LaunchTurn::launched(cuda::Gpu& gpu, const Stream& stream) {
  cuda::Event event = nullptr;
  {
    MutexLock lock(mutex_);
    if (!event_) {
      OH_ASSIGN_OR_RETURN(event_, gpu.take_event());
    }
    last_ = stream.id;
    event = event_;
  }
  return gpu.record(event, stream.handle);
}

HeldTurns::HeldTurns(std::vector<LaunchTurn*> turns, cuda::Gpu& gpu, cuda::Stream stream)
    : turns_(std::move(turns)), gpu_(gpu), stream_{stream, {}} {
  if (!turns_.empty()) stream_.id = gpu.stream_id(stream);  // before others wait for us
  std::sort(turns_.begin(), turns_.end(), std::less<>());
  turns_.erase(std::unique(turns_.begin(), turns_.end()), turns_.end());
  for (LaunchTurn* turn : turns_) held_.emplace_back(turn->turn_);
}

Status HeldTurns::follow() const {
  for (const LaunchTurn* turn : turns_) OH_RETURN_IF_ERROR(turn->follow(gpu_, stream_));
  return {};
}

Status HeldTurns::launched() const {
  for (LaunchTurn* turn : turns_) OH_RETURN_IF_ERROR(turn->launched(gpu_, stream_));
  return {};
}

}  // namespace oh
