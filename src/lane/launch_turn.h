// SPDX-License-Identifier: Apache-2.0
//
// Launches on one half of a lane follow each other, whichever streams and threads they come from:
// each waits for the event behind the one before, unless that one is in the same stream. Not those
// that are captured. One event is behind all halves of a launch.
//
// Threading: any thread. Who launches holds the turns of all that it launches on.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/sync.h"
#include "platform/cuda/gpu.h"

namespace oh {

// The event behind a launch, which its halves share. The last of them gives it back to the GPU.
class LaunchEvent {
 public:
  explicit LaunchEvent(cuda::Gpu& gpu, cuda::Event handle)
      : gpu_(gpu.shared_from_this()), handle_(handle) {}
  ~LaunchEvent() { gpu_->give_event(handle_); }
  LaunchEvent(const LaunchEvent&) = delete;
  LaunchEvent& operator=(const LaunchEvent&) = delete;
  cuda::Event handle() const { return handle_; }

 private:
  const std::shared_ptr<cuda::Gpu> gpu_;
  const cuda::Event handle_;
};

class LaunchTurn {
 public:
  // Whether the last launch has ended on the device.
  bool is_through(cuda::Gpu& gpu) const;

 private:
  friend class HeldTurns;
  // A stream, and the driver's number of it, by which it is compared; none: it is like no other.
  struct Stream {
    cuda::Stream handle;
    std::optional<uint64_t> id;
  };
  // Null where the stream need not wait.
  std::shared_ptr<const LaunchEvent> event_for(const Stream& stream) const;
  std::shared_ptr<const LaunchEvent> event() const;
  void launched(const Stream& stream, const std::shared_ptr<const LaunchEvent>& event);

  std::mutex turn_;  // before mutex_
  mutable Mutex mutex_;
  std::optional<uint64_t> last_ OH_GUARDED_BY(mutex_);  // number of the last launch's stream
  std::shared_ptr<const LaunchEvent> event_ OH_GUARDED_BY(mutex_);
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
  Result<std::shared_ptr<const LaunchEvent>> event() const;

  std::vector<LaunchTurn*> turns_;
  cuda::Gpu& gpu_;
  LaunchTurn::Stream stream_;
  std::vector<std::unique_lock<std::mutex>> held_;
};

}  // namespace oh
