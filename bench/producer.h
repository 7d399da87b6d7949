// SPDX-License-Identifier: Apache-2.0
//
// Work on a GPU that writes the first bytes of each message, and an event behind it: what a message
// of a framework's stream waits for.
//
// Threading: none; each side has its own.
#pragma once

#include <algorithm>

#include "payload.h"
#include "side.h"

namespace bench {

class Producer {
 public:
  // `size` bytes at `out` are the messages.
  Producer(const Device& device, uint8_t* out, size_t size)
      : device_(device), driver_(device.driver()), out_(out), bytes_(std::min<size_t>(size, 8)) {
    Current current(device_);
    BENCH_CUDA(driver_, event_create, &event_, cuda::kEventDisableTiming);
  }
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
  ~Producer() {
    Current current(device_);
    driver_.event_destroy(event_);
  }

  // Begins to write message `i`, and returns.
  void produce(uint64_t i) {
    Current current(device_);
    if (bytes_ > 0) {
      BENCH_CUDA(driver_, memset8_async, address_of(out_), mark(i), bytes_, device_.stream());
    }
    BENCH_CUDA(driver_, event_record, event_, device_.stream());
  }
  void wait() {
    Current current(device_);
    device_.synchronize();
  }
  onehop::After after() const { return onehop::After::event(event_); }
  cuda::Event event() const { return event_; }

  // Lays the pattern of `seed` back where the other side's producer wrote message `i`. The number
  // of bytes that it did not write.
  uint64_t take_back(Buffer& in, uint64_t seed, uint64_t i) {
    uint8_t* data = in.data();
    auto written = static_cast<uint64_t>(std::count(data, data + bytes_, mark(i)));
    fill(data, bytes_, seed);
    return bytes_ - written;
  }

 private:
  static uint8_t mark(uint64_t i) { return static_cast<uint8_t>(i * 5 + 3); }

  const Device& device_;
  const GpuDriver& driver_;
  uint8_t* out_;
  size_t bytes_;
  cuda::Event event_ = nullptr;
};

}  // namespace bench
