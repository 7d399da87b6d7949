// SPDX-License-Identifier: Apache-2.0
//
// Launches on one half of a lane follow each other, whichever streams and threads they come from:
// each waits for the event behind the one before. Not those that are captured.
//
// Threading: any thread. Who launches holds the turns of all that it launches on.
#pragma once

#include <mutex>
#include <vector>

#include "base/sync.h"
#include "platform/cuda/gpu.h"

namespace oh {

class LaunchTurn {
 public:
  // Whether the last launch has ended on the device.
  bool is_through(cuda::Gpu& gpu) const;
  // When nobody launches any more.
  void give_back(cuda::Gpu& gpu);

 private:
  friend class HeldTurns;
  Status follow(cuda::Gpu& gpu, cuda::Stream stream) const;
  Status launched(cuda::Gpu& gpu, cuda::Stream stream);

  std::mutex turn_;  // before mutex_
  mutable Mutex mutex_;
  cuda::Stream stream_ OH_GUARDED_BY(mutex_) = nullptr;
  cuda::Event event_ OH_GUARDED_BY(mutex_) = nullptr;
};

// Turns in the hands of a launch, taken in an order that is the same for everybody.
class HeldTurns {
 public:
  explicit HeldTurns(std::vector<LaunchTurn*> turns);

  // What the stream gets from now on follows what was launched before.
  Status follow(cuda::Gpu& gpu, cuda::Stream stream) const;
  // The launch is on the stream.
  Status launched(cuda::Gpu& gpu, cuda::Stream stream) const;

 private:
  std::vector<LaunchTurn*> turns_;
  std::vector<std::unique_lock<std::mutex>> held_;
};

}  // namespace oh
