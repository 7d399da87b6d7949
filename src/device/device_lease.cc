// SPDX-License-Identifier: Apache-2.0
#include "device/device_lease.h"

#include "base/clock.h"

namespace oh {

DeviceLease::~DeviceLease() {
  if (stream_) device_.give_stream(stream_);
  if (word_.host) device_.gpu().give_word(word_);
}

Status DeviceLease::take() {
  OH_ASSIGN_OR_RETURN(stream_, device_.take_stream());
  OH_ASSIGN_OR_RETURN(word_, device_.gpu().take_word());
  value_ = word_.host->load(std::memory_order_relaxed);
  return {};
}

Status DeviceLease::copy(void* to, const void* from, uint64_t size, bool last) {
  return device_.enqueue(stream_,
                         {to, from, size, nullptr, last ? word_.device : 0, last ? ++value_ : 0});
}

bool DeviceLease::copy_by(Worker& worker, void* to, const void* from, uint64_t size) {
  bool taken = worker.copy({reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), size,
                            word_.device, value_ + 1});
  if (taken) ++value_;
  return taken;
}

Status DeviceLease::wait(uint64_t value) {
  int64_t looked = now_ns();
  // acquire: the device's bytes are in place.
  while (word_.host->load(std::memory_order_acquire) < value) {
    cpu_relax();
    if (now_ns() - looked < kAskForErrors) continue;
    // A lost context writes no word. Other query errors do not mean that the copy failed.
    (void)device_.gpu().is_idle(stream_).ok();
    if (device_.gpu().is_lost()) return device_.gpu().loss();
    looked = now_ns();
  }
  return {};
}

void DeviceLease::quiesce() {
  if (stream_) (void)device_.gpu().wait_idle(stream_, Deadline::never());
}

}  // namespace oh
