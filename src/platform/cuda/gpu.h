// SPDX-License-Identifier: Apache-2.0
//
// Gpu: one device of this process (device.h), with its primary context, and what onehop keeps ready
// on it: streams, events, done words and kernels (kernels.h). Everything that is acquired is given
// back when the last holder of the Gpu lets go.
//
// Threading: any thread. Calls that touch the driver enter the device by themselves; none is made
// under a lock of ours that another thread may spin on.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/sync.h"
#include "platform/cuda/device.h"
#include "platform/cuda/driver.h"
#include "platform/cuda/kernels.h"

namespace oh::cuda {

class Gpu;

// Makes the device's context current for the calling thread, and lets internal calls pass while
// the thread captures a stream; undoes both.
class Enter {
 public:
  explicit Enter(const Gpu& gpu);
  ~Enter();
  Enter(const Enter&) = delete;
  Enter& operator=(const Enter&) = delete;
  // Why the context could not be entered; then no call may follow.
  const Status& status() const { return status_; }

 private:
  const Gpu& gpu_;
  bool pushed_ = false;
  bool exchanged_ = false;
  int mode_ = kCaptureRelaxed;  // the thread's former mode, once exchanged
  Status status_;
};

// A word of pinned host memory that the device writes at the end of a copy.
struct DoneWord {
  std::atomic<uint64_t>* host = nullptr;
  DevicePtr device = 0;
};

class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  // One object per device and process; retains the primary context. `name`: as device_named() knows
  // it.
  static oh::Result<std::shared_ptr<Gpu>> open(const Driver& driver, const std::string& name);
  static oh::Result<std::shared_ptr<Gpu>> open(const Driver& driver, Device ordinal);
  ~Gpu();

  const Driver& driver() const { return *driver_; }
  const DeviceFacts& facts() const { return facts_; }
  Context context() const { return context_; }
  Kernels& kernels() { return kernels_; }
  const Kernels& kernels() const { return kernels_; }

  // A stream that nothing else uses, until it is given back; streams are created as they are
  // needed.
  oh::Result<Stream> take_stream();
  void give_stream(Stream stream);
  oh::Result<Event> take_event();
  void give_event(Event event);
  // A done word that nothing else uses, zero. Give it back only when no write to it is under way.
  oh::Result<DoneWord> take_word();
  void give_word(DoneWord word);

  // Enqueues: wait for `after` (may be null), copy (none if `size` is 0), write `value` to the word
  // (none if `word` is 0). Returns at once. After an error some of it may have been enqueued.
  Status copy(Stream stream, DevicePtr to, DevicePtr from, uint64_t size, Event after,
              DevicePtr word, uint64_t value);
  // Which stream the handle stands for, by a number that no other stream of the process ever has.
  // Handles do not tell: that of the per-thread default stream is another stream in each thread,
  // and the driver gives the handle of a destroyed stream to a new one. None: the driver cannot
  // say.
  std::optional<uint64_t> stream_id(Stream stream) const;
  // Whether the stream is being captured into a graph.
  oh::Result<bool> is_capturing(Stream stream);
  // What the stream gets from now on waits for the event.
  Status wait_event(Stream stream, Event event);
  // The same for all that `other` has now.
  Status wait_stream(Stream stream, Stream other);
  // The same until the word is at least `value`, by a cyclic comparison. The stream's engine looks
  // at it, no kernel does.
  Status wait_word(Stream stream, DevicePtr word, uint64_t value);
  // The event is complete when all that the stream has now is.
  Status record(Event event, Stream stream);
  // An event that is complete when all work is that the device has now, the application's, too.
  // Goes back by give_event(). Invalidates captures that are under way on the device.
  // OH_ERR_NOT_VIABLE: the driver cannot (it is older than CUDA 12.5).
  oh::Result<Event> event_behind_all();
  Status zero(Stream stream, DevicePtr memory, uint64_t size);
  // Whether all that was enqueued is done. Unless the context is lost, an error is the query's
  // alone.
  oh::Result<bool> is_idle(Stream stream);
  // Waits until it is, or the context is lost. False: the deadline has passed.
  bool wait_idle(Stream stream, Deadline deadline);
  // An event that is complete when all work that `stream` has now is; null when it is idle already.
  // Goes back by give_event(). OH_ERR_INVALID: the stream is being captured.
  // Without `ask` it is never null.
  oh::Result<Event> event_behind(Stream stream, bool ask = true);
  // Whether the event is complete.
  oh::Result<bool> is_complete(Event event);

  // Device memory of ours, which others can map.
  oh::Result<DevicePtr> allocate(uint64_t size);
  void free(DevicePtr memory);

  // Lets the copies of this device reach the memory of `other` directly, if both contexts live and
  // the hardware can. Answers are kept, but for "the other context does not live yet".
  bool reach(Device other);

  // Whether the context is lost: an error after which every call fails, or a driver that shuts
  // down. What was enqueued writes nothing any more.
  bool is_lost() const { return lost_.load(std::memory_order_acquire); }
  // Why, as the call said it that met it first; ok while it is not.
  Status loss() const;
  // Finds out, where a call on what is not ours says that a context is lost.
  void ask_for_loss();

  // Objects of ours that the driver holds now, for tests: streams, events, pinned ranges.
  size_t open_objects() const;

  // For what belongs to a Gpu (Enter, Kernels, Pinned).
  // Driver::failure() of a call on handles of ours, which keeps a loss. Handles of the user's may
  // be of a context that is gone while ours lives.
  Status failure(Code code, const char* call, const std::string& details) const;
  Status keep_loss(Status status) const;
  // The driver holds so many objects more for us.
  void count_objects(int change) {
    objects_.fetch_add(static_cast<size_t>(change), std::memory_order_relaxed);
  }

 private:
  Gpu();
  Status start(const Driver& driver, Device ordinal);
  oh::Result<Stream> make_stream();
  // A page more of done words.
  Status add_words();
  enum class Reach { kYes, kNo, kNotYet };
  Reach ask_reach(Device other);
  struct WordPage;

  const Driver* driver_ = nullptr;
  DeviceFacts facts_;
  Context context_ = nullptr;
  mutable Mutex mutex_;
  std::vector<Stream> streams_ OH_GUARDED_BY(mutex_);  // idle
  std::vector<Event> events_ OH_GUARDED_BY(mutex_);    // idle
  std::vector<DoneWord> words_ OH_GUARDED_BY(mutex_);  // idle
  std::vector<std::unique_ptr<WordPage>> pages_ OH_GUARDED_BY(mutex_);
  std::vector<std::pair<Device, bool>> reached_ OH_GUARDED_BY(mutex_);  // answers
  mutable Status loss_ OH_GUARDED_BY(mutex_);
  Kernels kernels_;
  mutable std::atomic<bool> lost_{false};
  std::atomic<size_t> objects_{0};  // relaxed: a count, nothing is ordered by it
};

// Host memory that devices may write: registered with the driver while it is held, once per process
// however many endpoints use it. Release it before the memory is unmapped.
class Pinned {
 public:
  static oh::Result<std::shared_ptr<Pinned>> of(const std::shared_ptr<Gpu>& gpu, void* base,
                                                size_t size);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  // The device's address of `host`, which lies within.
  DevicePtr device(const void* host) const {
    return device_ + (reinterpret_cast<uint64_t>(host) - reinterpret_cast<uint64_t>(base_));
  }

 private:
  Pinned() = default;
  Status start(const std::shared_ptr<Gpu>& gpu, void* base, size_t size);
  void stop();

  std::shared_ptr<Gpu> gpu_;
  void* base_ = nullptr;  // rounded to pages
  size_t size_ = 0;
  DevicePtr device_ = 0;
  bool ours_ = false;  // to unregister
};

}  // namespace oh::cuda
