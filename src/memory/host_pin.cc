// SPDX-License-Identifier: Apache-2.0
#include "memory/host_pin.h"

#include <utility>

#include "base/log.h"
#include "platform/os/process.h"

namespace oh {

std::shared_ptr<cuda::Pinned> HostPin::pin(const std::shared_ptr<cuda::Gpu>& gpu,
                                           const Mapping& memory) {
  MutexLock lock(mutex_);
  if (pinned_ && pinned_->valid()) return pinned_;
  if (failed_) return nullptr;
  pinned_.reset();
  Result<std::shared_ptr<cuda::Pinned>> made =
      cuda::Pinned::only(gpu, memory.data(), memory.size());
  if (made.ok()) return pinned_ = std::move(*made);
  if (gpu->is_lost()) return nullptr;
  failed_ = true;
  OH_LOG(kWarn,
         "copies between %s and %llu bytes of shared host memory are several times slower: %s",
         gpu->facts().name.c_str(), static_cast<unsigned long long>(memory.size()),
         made.status().text().c_str());
  return nullptr;
}

void HostPin::leave(Mapping memory) {
  if (generation_ != fork_generation()) return;
  MutexLock lock(mutex_);
  if (pinned_) UnusedPins::instance().add(std::move(memory), std::move(pinned_));
}

UnusedPins& UnusedPins::instance() {
  return of_this_process([] { return new UnusedPins; });
}

void UnusedPins::add(Mapping memory, std::shared_ptr<cuda::Pinned> pinned) {
  {
    MutexLock lock(mutex_);
    unused_.push_back({std::move(memory), std::move(pinned)});
    if (std::exchange(running_, true)) return;
  }
  unsigned long thread;
  auto body = [](void* self) { static_cast<UnusedPins*>(self)->release(); };
  if (start_thread("onehop-unpin", body, this, &thread).ok()) {
    detach_thread(thread);
  } else {
    release();
  }
}

void UnusedPins::release() {
  for (;;) {
    std::vector<Unused> releasing;  // destroyed without the lock
    MutexLock lock(mutex_);
    releasing.swap(unused_);
    running_ = !releasing.empty();
    if (!running_) return;
  }
}

bool UnusedPins::empty() const {
  MutexLock lock(mutex_);
  return !running_;
}

}  // namespace oh
