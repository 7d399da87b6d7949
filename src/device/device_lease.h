// SPDX-License-Identifier: Apache-2.0
//
// DeviceLease: a stream and a done word of a link for the time of one operation. What is enqueued
// through it waits for nothing but room on the device, so its waits end.
//
// Threading: one owner.
#pragma once

#include "device/device_link.h"

namespace oh {

class DeviceLease {
 public:
  explicit DeviceLease(DeviceLink& device) : device_(device) {}
  ~DeviceLease();
  DeviceLease(const DeviceLease&) = delete;
  DeviceLease& operator=(const DeviceLease&) = delete;

  Status take();
  // Enqueues a copy by the engine; the last one of the operation writes the word.
  Status copy(void* to, const void* from, uint64_t size, bool last);
  // The only copy of the operation by the GPU's worker, if it runs; else nothing happened.
  bool copy_by(Worker& worker, void* to, const void* from, uint64_t size);
  // For a kernel that writes the word: what it has to write, each time another value.
  cuda::Stream stream() const { return stream_; }
  cuda::DevicePtr word() const { return word_.device; }
  uint64_t next_value() { return ++value_; }
  // Until the word has the value; without one, the last that was given out.
  Status wait(uint64_t value);
  Status wait() { return wait(value_); }
  // After a failure to enqueue: until nothing of what was enqueued before it is under way.
  void quiesce();

 private:
  DeviceLink& device_;
  cuda::Stream stream_ = nullptr;
  cuda::DoneWord word_;
  uint64_t value_ = 0;
};

}  // namespace oh
