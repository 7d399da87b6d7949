// SPDX-License-Identifier: Apache-2.0
#include "lane/launch_turn.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace oh {

Result<std::shared_ptr<LaunchEvent>> LaunchEvent::take(cuda::Gpu& gpu) {
  OH_ASSIGN_OR_RETURN(const cuda::Event made, gpu.take_event());
  return std::make_shared<LaunchEvent>(gpu.shared_from_this(), made);
}

LaunchEvent::~LaunchEvent() {
  MutexLock lock(mutex_);
  drop_behind_all();
  gpu_->give_event(handle_);
}

void LaunchEvent::drop_behind_all() {
  if (behind_all_) gpu_->give_event(std::exchange(behind_all_, nullptr));
}

Status LaunchEvent::record(cuda::Stream stream) {
  Status status = gpu_->record(handle_, stream);
  recorded_.store(status.ok(), std::memory_order_relaxed);
  MutexLock lock(mutex_);
  drop_behind_all();  // of the previous launch
  return status;
}

Status LaunchEvent::wait(cuda::Stream stream) {
  if (recorded_.load(std::memory_order_relaxed)) return gpu_->wait_event(stream, handle_);
  if (is_over()) return {};
  return error(OH_ERR_SYSTEM,
               "a launch on %s cannot follow the one before it on its lane: the event behind that "
               "one could not be recorded, so its end is not known; launch on the stream of that "
               "one, or call again when the GPU is through with its work",
               gpu_->facts().name.c_str());
}

bool LaunchEvent::is_over() {
  if (gpu_->is_lost()) return true;
  if (recorded_.load(std::memory_order_relaxed)) return is_complete(handle_);
  MutexLock lock(mutex_);
  if (!behind_all_) {
    Result<cuda::Event> made = gpu_->event_behind_all();
    if (!made.ok()) return gpu_->is_lost();
    behind_all_ = *made;
  }
  return is_complete(behind_all_);
}

// Other query errors do not mean that the launch failed.
bool LaunchEvent::is_complete(cuda::Event event) const {
  Result<bool> complete = gpu_->is_complete(event);
  if (complete.ok()) return *complete;
  (void)gpu_->keep_loss(complete.status()).ok();
  return gpu_->is_lost();
}

bool LaunchTurn::is_through() const {
  std::shared_ptr<LaunchEvent> last;
  {
    const std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn) return false;
    last = event();
  }
  return !last || last->is_over();
}

std::shared_ptr<LaunchEvent> LaunchTurn::event() const {
  MutexLock lock(mutex_);
  return event_;
}

std::shared_ptr<LaunchEvent> LaunchTurn::event_for(const LaunchStream& stream) const {
  MutexLock lock(mutex_);
  return stream.id && last_ == stream.id ? nullptr : event_;
}

void LaunchTurn::launched(const LaunchStream& stream, const std::shared_ptr<LaunchEvent>& event) {
  MutexLock lock(mutex_);
  last_ = stream.id;
  if (event_ != event) event_ = event;
}

std::shared_ptr<LaunchEvent> Launches::event_of(const LaunchStream& stream) const {
  MutexLock lock(mutex_);
  for (auto last = all_.rbegin(); last != all_.rend(); ++last) {
    if (last->is_of(stream)) return last->event;
  }
  return nullptr;
}

void Launches::add(const LaunchStream& stream, const std::shared_ptr<LaunchEvent>& event) {
  MutexLock lock(mutex_);
  for (auto last = all_.rbegin(); last != all_.rend(); ++last) {
    if (last->event == event) return;  // recorded again: it is behind this launch, too
  }
  all_.push_back({stream.id, event});
  if (all_.size() < many_) return;
  std::erase_if(all_, [](const Last& last) { return last.event->is_over(); });
  // Doubling keeps the checks for each launch few, however many launches there are.
  many_ = std::max(kFew, 2 * all_.size());
}

bool Launches::are_over() const {
  MutexLock lock(mutex_);
  return std::all_of(all_.begin(), all_.end(),
                     [](const Last& last) { return last.event->is_over(); });
}

namespace {
// Sorted, without duplicates.
template <typename T>
std::vector<T*> distinct(std::vector<T*> all) {
  std::sort(all.begin(), all.end(), std::less<>());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}
}  // namespace

HeldTurns::HeldTurns(std::vector<LaunchTurn*> turns, std::vector<Launches*> apart, cuda::Gpu& gpu,
                     cuda::Stream stream)
    : turns_(distinct(std::move(turns))),
      apart_(distinct(std::move(apart))),
      gpu_(gpu),
      stream_{stream, {}} {
  if (turns_.empty() && apart_.empty()) return;
  stream_.id = gpu.stream_id(stream);  // a driver call: before locking the turns
  for (LaunchTurn* turn : turns_) held_.emplace_back(turn->turn_);
}

Status HeldTurns::follow() {
  std::shared_ptr<LaunchEvent> waited;
  for (const LaunchTurn* turn : turns_) {
    std::shared_ptr<LaunchEvent> event = turn->event_for(stream_);
    if (!event || event == waited) continue;
    OH_RETURN_IF_ERROR(event->wait(stream_.handle));
    waited = std::move(event);
  }
  waited.reset();
  if (turns_.empty() && apart_.empty()) return {};
  OH_ASSIGN_OR_RETURN(event_, choose_event());
  return {};
}

Status HeldTurns::launched() {
  if (!event_) return {};
  Status status = event_->record(stream_.handle);
  for (LaunchTurn* turn : turns_) turn->launched(stream_, event_);
  for (Launches* launches : apart_) launches->add(stream_, event_);
  return status;
}

// Reuses the last launch's event if nothing outside this launch holds it.
Result<std::shared_ptr<LaunchEvent>> HeldTurns::choose_event() const {
  std::shared_ptr<LaunchEvent> last =
      turns_.empty() ? apart_.front()->event_of(stream_) : turns_.front()->event();
  long ours = 1;
  for (const LaunchTurn* turn : turns_) ours += last && turn->event() == last ? 1 : 0;
  for (const Launches* all : apart_) ours += last && all->event_of(stream_) == last ? 1 : 0;
  if (last && last.use_count() == ours) return last;
  return LaunchEvent::take(gpu_);
}

}  // namespace oh
