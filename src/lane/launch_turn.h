// SPDX-License-Identifier: Apache-2.0
//
// Launches on one half of a lane follow each other, whichever streams and threads they come from:
// each waits for the event behind the one before, unless that one is in the same stream. Not those
// that are captured.
//
// Threading: any thread. Who launches holds the turns of all that it launches on.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/sync.h"
#include "platform/cuda/gpu.h"

namespace oh {

class LaunchTurn {
 public:
  // Whether the last launch has ended on the device.
  bool is_through(cuda::Gpu& gpu) const;
  // Once no thread launches any more.
  void give_back(cuda::Gpu& gpu);

 private:
  friend class HeldTurns;
  // A stream, and the driver's number of it, by which it is compared; none: it is like no other.
  struct Stream {
    cuda::Stream handle;
    std::optional<uint64_t> id;
  };
  Status follow(cuda::Gpu& gpu, const Stream& stream) const;
  Status launched(cuda::Gpu& gpu, const Stream& stream);

  std::mutex turn_;  // before mutex_
  mutable Mutex mutex_;
  std::optional<uint64_t> last_ OH_GUARDED_BY(mutex_);  // number of the last launch's stream
  cuda::Event event_ OH_GUARDED_BY(mutex_) = nullptr;
};

// Turns in the hands of a launch on a stream, taken in an order that is the same for all.
class HeldTurns {
 public:
  HeldTurns(std::vector<LaunchTurn*> turns, cuda::Gpu& gpu, cuda::Stream stream);

  // What the stream gets from now on follows what was launched before.
  Status follow() const;
  // The launch is on the stream.
  Status launched() const;

 private:
  std::vector<LaunchTurn*> turns_;
  cuda::Gpu& gpu_;
  LaunchTurn::Stream stream_;
  std::vector<std::unique_lock<std::mutex>> held_;
};

}  // namespace oh
