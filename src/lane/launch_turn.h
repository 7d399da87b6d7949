// SPDX-License-Identifier: Apache-2.0
//
// Launches on one half of a lane follow each other, whichever streams and threads they come from:
// each waits for the event behind the one before, unless that one is in the same stream. Other
// operations take no turns; their launches are remembered until they are over. Not those that are
// captured. One event is behind all that a launch does.
//
// Threading: any thread. Who launches holds the turns of all that it launches on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/sync.h"
#include "platform/cuda/gpu.h"

namespace oh {

// The event behind a launch, which those share that are part of it. The last of them gives it back
// to the GPU. The launch comes after take() and before record(), so what can fail before it does.
class LaunchEvent {
 public:
  static Result<std::shared_ptr<LaunchEvent>> take(cuda::Gpu& gpu);
  LaunchEvent(std::shared_ptr<cuda::Gpu> gpu, cuda::Event handle)
      : gpu_(std::move(gpu)), handle_(handle) {}
  ~LaunchEvent();
  LaunchEvent(const LaunchEvent&) = delete;
  LaunchEvent& operator=(const LaunchEvent&) = delete;

  // Behind what the stream has now. After a failure that is over when all is that the GPU has to
  // do.
  Status record(cuda::Stream stream);
  // What the stream gets from now on follows it. After such a failure: only once it is over.
  Status wait(cuda::Stream stream);
  // Whether all that it is behind has ended, or the context is lost.
  bool is_over();

 private:
  bool is_complete(cuda::Event event) const;
  void drop_behind_all() OH_REQUIRES(mutex_);

  const std::shared_ptr<cuda::Gpu> gpu_;
  const cuda::Event handle_;
  std::atomic<bool> recorded_{false};  // relaxed: the event is the driver's
  Mutex mutex_;
  // Since it was asked for after a failure. Recording it ends captures that are under way.
  cuda::Event behind_all_ OH_GUARDED_BY(mutex_) = nullptr;
};

// A stream, and the driver's number of it, by which it is compared; none: it is like no other.
struct LaunchStream {
  cuda::Stream handle;
  std::optional<uint64_t> id;
};

class LaunchTurn {
 public:
  // Whether the last launch has ended on the device.
  bool is_through() const;

 private:
  friend class HeldTurns;
  // Null where the stream need not wait.
  std::shared_ptr<LaunchEvent> event_for(const LaunchStream& stream) const;
  std::shared_ptr<LaunchEvent> event() const;
  void launched(const LaunchStream& stream, const std::shared_ptr<LaunchEvent>& event);

  std::mutex turn_;  // before mutex_
  mutable Mutex mutex_;
  std::optional<uint64_t> last_ OH_GUARDED_BY(mutex_);  // number of the last launch's stream
  std::shared_ptr<LaunchEvent> event_ OH_GUARDED_BY(mutex_);
};

// The last launch on each stream that takes no turn, until it is over.
class Launches {
 public:
  // Null: there is none.
  std::shared_ptr<LaunchEvent> event_of(const LaunchStream& stream) const;
  void add(const LaunchStream& stream, const std::shared_ptr<LaunchEvent>& event);
  bool are_over() const;

 private:
  static constexpr size_t kFew = 16;
  struct Last {
    std::optional<uint64_t> stream;
    std::shared_ptr<LaunchEvent> event;
    bool is_of(const LaunchStream& other) const { return other.id && stream == other.id; }
  };

  mutable Mutex mutex_;
  std::vector<Last> all_ OH_GUARDED_BY(mutex_);
  size_t many_ OH_GUARDED_BY(mutex_) = kFew;  // from here on those that are over are dropped
};

// Turns in the hands of a launch on a stream, taken in an order that is the same for all.
class HeldTurns {
 public:
  // `apart`: where the launch is remembered for operations that take no turns.
  HeldTurns(std::vector<LaunchTurn*> turns, std::vector<Launches*> apart, cuda::Gpu& gpu,
            cuda::Stream stream);

  // Before the launch: what the stream gets from now on follows what was launched before.
  Status follow();
  // The launch is on the stream, also when this fails.
  Status launched();

 private:
  Result<std::shared_ptr<LaunchEvent>> choose_event() const;

  std::vector<LaunchTurn*> turns_;
  std::vector<Launches*> apart_;
  cuda::Gpu& gpu_;
  LaunchStream stream_;
  std::vector<std::unique_lock<std::mutex>> held_;
  std::shared_ptr<LaunchEvent> event_;  // from follow() on
};

}  // namespace oh
