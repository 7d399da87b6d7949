// SPDX-License-Identifier: Apache-2.0
//
// Orders the launches on one half of a lane, from any streams and threads: each launch waits for
// the event recorded after the previous one, unless both are on the same stream. Other operations
// take no turn; their launches are only tracked until they end. Captured launches are neither
// ordered nor tracked. One event covers all operations of a launch.
//
// Threading: any thread. A thread holds the turns of all halves that it launches on.
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

// The event recorded after a launch, shared by the launch's operations. The last owner returns it
// to the GPU. take() comes before the launch and record() after it, so a failed allocation launches
// nothing.
class LaunchEvent {
 public:
  static Result<std::shared_ptr<LaunchEvent>> take(cuda::Gpu& gpu);
  LaunchEvent(std::shared_ptr<cuda::Gpu> gpu, cuda::Event handle)
      : gpu_(std::move(gpu)), handle_(handle) {}
  ~LaunchEvent();
  LaunchEvent(const LaunchEvent&) = delete;
  LaunchEvent& operator=(const LaunchEvent&) = delete;

  // Records the event after the stream's current work. If this fails, that work counts as ended
  // only when all work of the GPU has ended.
  Status record(cuda::Stream stream);
  // Makes later work of the stream wait for the event. After a failed record() it returns an error
  // until is_over().
  Status wait(cuda::Stream stream);
  // Whether the work before the event has ended, or the context is lost.
  bool is_over();

 private:
  bool is_complete(cuda::Event event) const;
  void drop_behind_all() OH_REQUIRES(mutex_);

  const std::shared_ptr<cuda::Gpu> gpu_;
  const cuda::Event handle_;
  std::atomic<bool> recorded_{false};  // relaxed: the driver synchronizes the event
  Mutex mutex_;
  // Recorded by is_over() after a failed record(). Recording it invalidates captures in progress.
  cuda::Event behind_all_ OH_GUARDED_BY(mutex_) = nullptr;
};

// A stream, and the driver's id that identifies it; without an id it equals no other stream.
struct LaunchStream {
  cuda::Stream handle;
  std::optional<uint64_t> id;
};

class LaunchTurn {
 public:
  // Whether the last launch has ended on the device. False while a thread holds the turn: its
  // launch may have no event yet.
  bool is_through() const;

 private:
  friend class HeldTurns;
  // Null: the stream need not wait.
  std::shared_ptr<LaunchEvent> event_for(const LaunchStream& stream) const;
  std::shared_ptr<LaunchEvent> event() const;
  void launched(const LaunchStream& stream, const std::shared_ptr<LaunchEvent>& event);

  mutable std::mutex turn_;  // taken before mutex_
  mutable Mutex mutex_;
  std::optional<uint64_t> last_ OH_GUARDED_BY(mutex_);  // id of the last launch's stream
  std::shared_ptr<LaunchEvent> event_ OH_GUARDED_BY(mutex_);
};

// Events behind the launches without a turn, until they have ended. Threads that launch on one
// stream may add their events in another order than they recorded them, so an event never replaces
// another one.
class Launches {
 public:
  // The event that was added last for the stream. Null: there is none.
  std::shared_ptr<LaunchEvent> event_of(const LaunchStream& stream) const;
  // Call after `event` was recorded on `stream`.
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
  std::vector<Last> all_ OH_GUARDED_BY(mutex_);  // in the order of add()
  size_t many_ OH_GUARDED_BY(mutex_) = kFew;     // at this size ended launches are dropped
};

// The turns that a launch on a stream holds. All launches lock turns in the same order.
class HeldTurns {
 public:
  // `apart`: where the launch is tracked for its operations that take no turn.
  HeldTurns(std::vector<LaunchTurn*> turns, std::vector<Launches*> apart, cuda::Gpu& gpu,
            cuda::Stream stream);

  // Call before the launch: makes later work of the stream wait for earlier launches.
  Status follow();
  // Call after the launch, which stays on the stream even if this fails.
  Status launched();

 private:
  Result<std::shared_ptr<LaunchEvent>> choose_event() const;

  std::vector<LaunchTurn*> turns_;
  std::vector<Launches*> apart_;
  cuda::Gpu& gpu_;
  LaunchStream stream_;
  std::vector<std::unique_lock<std::mutex>> held_;
  std::shared_ptr<LaunchEvent> event_;  // set by follow()
};

}  // namespace oh
