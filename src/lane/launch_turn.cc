// SPDX-License-Identifier: Apache-2.0
#include "lane/launch_turn.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace oh {

bool LaunchTurn::is_through(cuda::Gpu& gpu) const {
  const std::shared_ptr<const LaunchEvent> last = event();
  if (!last) return true;
  Result<bool> complete = gpu.is_complete(last->handle());
  return !complete.ok() || *complete;
}

std::shared_ptr<const LaunchEvent> LaunchTurn::event() const {
  MutexLock lock(mutex_);
  return event_;
}

std::shared_ptr<const LaunchEvent> LaunchTurn::event_for(const Stream& stream) const {
  MutexLock lock(mutex_);
  return stream.id && last_ == stream.id ? nullptr : event_;
}

void LaunchTurn::launched(const Stream& stream, const std::shared_ptr<const LaunchEvent>& event) {
  MutexLock lock(mutex_);
  last_ = stream.id;
  if (event_ != event) event_ = event;
}

HeldTurns::HeldTurns(std::vector<LaunchTurn*> turns, cuda::Gpu& gpu, cuda::Stream stream)
    : turns_(std::move(turns)), gpu_(gpu), stream_{stream, {}} {
  if (!turns_.empty()) stream_.id = gpu.stream_id(stream);  // before others wait for us
  std::sort(turns_.begin(), turns_.end(), std::less<>());
  turns_.erase(std::unique(turns_.begin(), turns_.end()), turns_.end());
  for (LaunchTurn* turn : turns_) held_.emplace_back(turn->turn_);
}

Status HeldTurns::follow() const {
  std::shared_ptr<const LaunchEvent> waited;
  for (const LaunchTurn* turn : turns_) {
    std::shared_ptr<const LaunchEvent> event = turn->event_for(stream_);
    if (!event || event == waited) continue;
    OH_RETURN_IF_ERROR(gpu_.wait_event(stream_.handle, event->handle()));
    waited = std::move(event);
  }
  return {};
}

Status HeldTurns::launched() const {
  if (turns_.empty()) return {};
  OH_ASSIGN_OR_RETURN(const std::shared_ptr<const LaunchEvent> event, this->event());
  OH_RETURN_IF_ERROR(gpu_.record(event->handle(), stream_.handle));
  for (LaunchTurn* turn : turns_) turn->launched(stream_, event);
  return {};
}

// The one of the last launch, where no half has it that is not of this launch.
Result<std::shared_ptr<const LaunchEvent>> HeldTurns::event() const {
  std::shared_ptr<const LaunchEvent> last = turns_.front()->event();
  long ours = 1;
  for (const LaunchTurn* turn : turns_) ours += last && turn->event() == last ? 1 : 0;
  if (last && last.use_count() == ours) return last;
  OH_ASSIGN_OR_RETURN(const cuda::Event made, gpu_.take_event());
  return std::make_shared<const LaunchEvent>(gpu_, made);
}

}  // namespace oh
