// SPDX-License-Identifier: Apache-2.0
//
// CopyTicket: a stream and a done word for the copies of one operation. The device writes the word
// after the copies, so waiters poll memory. Only a slow copy costs a driver call, since a lost
// context never writes the word.
//
//   open ─▶ copy(value) ... copy(value) ─▶ is_done ─▶ destroyed: stream and word are returned
//                  └ failed ─▶ drain ─────────┘
//
// Threading: one owner at a time, on any thread. open(), copy(), check(), wait(), end() and drain()
// call the driver: not under a link's lock. The Gpu must outlive the ticket.
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "platform/cuda/gpu.h"

namespace oh {

// How long a copy may take before the driver is queried for errors, and the interval of further
// queries.
inline constexpr int64_t kAskForErrors = kMillisecond;

class CopyTicket {
 public:
  static Result<CopyTicket> open(cuda::Gpu& gpu);
  // A closed ticket: it has no stream, and nothing is in flight.
  CopyTicket() = default;
  // Leaks a stream and a word that the device may still use.
  ~CopyTicket();
  CopyTicket(CopyTicket&& other) noexcept { swap(other); }
  CopyTicket& operator=(CopyTicket&& other) noexcept {
    CopyTicket(std::move(other)).swap(*this);
    return *this;
  }

  bool is_open() const { return stream_ != nullptr; }
  cuda::Stream stream() const { return stream_; }
  cuda::DevicePtr word() const { return word_.device; }
  // Returns the value that the device must write to the word next. The ticket is done once it has.
  uint64_t next_value() {
    asked_ = now_ns();
    return ++value_;
  }
  // Enqueues a copy by the copy engine, and the write of `value` after it unless that is 0. After
  // an error part of it may have been enqueued: call drain().
  Status copy(void* to, const void* from, uint64_t size, uint64_t value);

  // The last value that the device has written. The bytes of all copies before it are in place.
  uint64_t seen() const { return word_.host->load(std::memory_order_acquire); }
  bool is_done() const { return !is_open() || seen() >= value_; }
  // Not done, and check() is due.
  bool is_late() const { return !is_done() && now_ns() - asked_ > kAskForErrors; }
  // Queries the driver: whether the stream is idle, or why the context is lost.
  Result<bool> check();
  // Waits until the device has written `value` (default: the last one), or the context is lost.
  Status wait(uint64_t value);
  Status wait() { return wait(value_); }
  // Ends an operation: waits for it and returns its result. If enqueueing has failed, drains what
  // was enqueued and returns that error.
  Status end(const Status& enqueued);
  // After an error: waits until nothing that was enqueued is in flight, or the context is lost.
  // False: the deadline has passed.
  bool drain(Deadline deadline);
  // Call when nothing is in flight. Marks the ticket done: the device will never write the values
  // that are missing.
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
