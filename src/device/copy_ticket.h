// SPDX-License-Identifier: Apache-2.0
//
// CopyTicket: a stream and a done word for the copies of one operation. The device writes the word
// behind the copies, so waiters poll memory. Only a copy that takes long costs a driver call: a
// lost context writes no word.
//
//   open ─▶ copy(value) ... copy(value) ─▶ is_done ─▶ destroyed: stream and word go back
//                  └ failed ─▶ drain ─────────┘
//
// Threading: one owner, who may hand it from thread to thread. open(), copy(), check(), wait() and
// drain() call the driver: not under a link's lock. The device must outlive the ticket.
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "platform/cuda/gpu.h"

namespace oh {

// How long a copy may take before the driver is asked for errors, and how often it is asked then.
inline constexpr int64_t kAskForErrors = kMillisecond;

class CopyTicket {
 public:
  static Result<CopyTicket> open(cuda::Gpu& gpu);
  // Closed: it has no stream, and nothing is under way.
  CopyTicket() = default;
  // A stream and a word that the device may still use are never used again.
  ~CopyTicket();
  CopyTicket(CopyTicket&& other) noexcept { swap(other); }
  CopyTicket& operator=(CopyTicket&& other) noexcept {
    CopyTicket(std::move(other)).swap(*this);
    return *this;
  }

  bool is_open() const { return stream_ != nullptr; }
  cuda::Stream stream() const { return stream_; }
  cuda::DevicePtr word() const { return word_.device; }
  // What the device has to write to the word next. The ticket is not done before it has.
  uint64_t next_value() {
    asked_ = now_ns();
    return ++value_;
  }
  // Enqueues a copy by the engine; a `value` other than 0 is written behind it. After an error some
  // of it may have been enqueued: drain().
  Status copy(void* to, const void* from, uint64_t size, uint64_t value);

  // The last value that the device has written; its bytes before that are in place.
  uint64_t seen() const { return word_.host->load(std::memory_order_acquire); }
  bool is_done() const { return !is_open() || seen() >= value_; }
  // Not done, and check() is due.
  bool is_late() const { return !is_done() && now_ns() - asked_ > kAskForErrors; }
  // Asks the driver: whether the stream is idle, or why the context is lost.
  Result<bool> check();
  // Until the device has written `value`, or the last one; or until the context is lost.
  Status wait(uint64_t value);
  Status wait() { return wait(value_); }
  // The end of an operation: waits for it, or if enqueueing it failed, until what was enqueued has
  // ended; how that went.
  Status end(const Status& enqueued);
  // After an error: until nothing of what was enqueued is under way, or the context is lost. False:
  // the deadline has passed.
  bool drain(Deadline deadline);
  // Nothing is under way: what the device has not written by now it never will.
  void write_off() { value_ = seen(); }

 private:
  void swap(CopyTicket& other) noexcept;

  cuda::Gpu* gpu_ = nullptr;
  cuda::Stream stream_ = nullptr;
  cuda::DoneWord word_;
  uint64_t value_ = 0;
  int64_t asked_ = 0;
};

}  // namespace oh
