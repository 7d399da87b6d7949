// SPDX-License-Identifier: Apache-2.0
//
// The timed loops of what runs in the order of a stream, or within a kernel: the same for onehop,
// for NCCL, and for floors.
//
// Threading: each call belongs to one thread, and the device's context is current there.
#pragma once

#include "gpu_kernels.h"
#include "side.h"

namespace bench {

// How one of the two sides moves bytes. All but sync() enqueue on the device's stream and return.
struct StreamPair {
  const Device& device;
  int number;
  uint8_t* out;
  uint8_t* in;
  std::function<void()> sync;  // both sides have come here
  std::function<void()> give;  // the message out
  std::function<void()> take;  // the other side's, in
  // Bandwidth: side 1 tells that all is there, and side 0 waits for that.
  std::function<void()> confirm;
  std::function<void()> await_confirmation;
};

// A sample is the mean of up to 50 round trips, halved. Timed iterations are whole samples.
Outcome stream_latency(const Spec& spec, const StreamPair& pair);
// Side 0 gives. A sample is the mean of a tenth of the messages.
Outcome stream_bandwidth(const Spec& spec, const StreamPair& pair);

// One of the two sides of messages to and fro within a kernel.
struct KernelPair {
  const Device& device;
  uint8_t* findings;  // of bench/kernels.h, in memory of the device
  std::function<void()> sync;
  std::function<void(bool checked, uint32_t rounds, bool corrupt)> launch;
};

// A sample is the mean of a launch, of which there are ten.
Outcome kernel_latency(const Spec& spec, int number, const KernelPair& pair);

}  // namespace bench
