// SPDX-License-Identifier: Apache-2.0
//
// Gpu: one device of this process (device.h) with its primary context, and onehop's resources on
// it: streams, events, done words and kernels (kernels.h). The last reference to the Gpu releases
// them all. When the context is lost nothing is released: the driver has released everything with
// the context, and may use the same handles and addresses in the next context of the device.
//
// Threading: any thread. Calls to the driver enter the device's context themselves. No driver call
// is made under an onehop lock on which another thread may spin.
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

// Makes the device's context current on the calling thread, and permits onehop's own driver calls
// while the thread captures a stream. The destructor restores both.
class Enter {
 public:
  explicit Enter(const Gpu& gpu);
  ~Enter();
  Enter(const Enter&) = delete;
  Enter& operator=(const Enter&) = delete;
  // Why the context could not be entered; then make no driver call.
  const Status& status() const { return status_; }

 private:
  const Gpu& gpu_;
  bool pushed_ = false;
  bool exchanged_ = false;
  int mode_ = kCaptureRelaxed;  // the thread's previous mode, once exchanged
  Status status_;
};

// A word of pinned host memory that the device writes at the end of a copy.
struct DoneWord {
  std::atomic<uint64_t>* host = nullptr;
  DevicePtr device = 0;
};

class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  // One object per device and process; another one once its context is lost. Retains the primary
  // context. `name`: as for device_named().
  static oh::Result<std::shared_ptr<Gpu>> open(const Driver& driver, const std::string& name);
  static oh::Result<std::shared_ptr<Gpu>> open(const Driver& driver, Device ordinal);
  ~Gpu();

  const Driver& driver() const { return *driver_; }
  const DeviceFacts& facts() const { return facts_; }
  Context context() const { return context_; }
  Kernels& kernels() { return kernels_; }
  const Kernels& kernels() const { return kernels_; }

  // A stream for exclusive use until it is given back. Created on demand.
  oh::Result<Stream> take_stream();
  void give_stream(Stream stream);
  oh::Result<Event> take_event();
  void give_event(Event event);
  // A done word for exclusive use, set to zero. Give it back only when no write to it is in flight.
  oh::Result<DoneWord> take_word();
  void give_word(DoneWord word);

  // Enqueues on the stream: wait for `after` (may be null), copy (none if `size` is 0), write
  // `value` to the word (none if `word` is 0). Does not block. After an error, some of the steps
  // may have been enqueued.
  Status copy(Stream stream, DevicePtr to, DevicePtr from, uint64_t size, Event after,
              DevicePtr word, uint64_t value);
  // The stream writes `value` to the word after its current work.
  Status write_word(Stream stream, DevicePtr word, uint64_t value);
  // An identifier of the stream, unique for the life of the process. Handles are not unique: the
  // handle of the per-thread default stream names another stream in each thread, and the driver
  // reuses handles of destroyed streams. None if the driver does not support it.
  std::optional<uint64_t> stream_id(Stream stream) const;
  // Whether the stream is being captured into a graph.
  oh::Result<bool> is_capturing(Stream stream);
  // Later work of the stream waits for the event.
  Status wait_event(Stream stream, Event event);
  // Later work of `stream` waits for all work that is now in `other`.
  Status wait_stream(Stream stream, Stream other);
  // Later work of the stream waits until the word is at least `value`, by a cyclic comparison. The
  // stream's engine polls the word; no kernel does.
  Status wait_word(Stream stream, DevicePtr word, uint64_t value);
  // The event completes when all work that is now in the stream has ended.
  Status record(Event event, Stream stream);
  // An event that completes when all work that is now on the device has ended, including the
  // application's. Return it with give_event(). Invalidates captures in progress on the device.
  // OH_ERR_NOT_VIABLE: the driver does not support it (older than CUDA 12.5).
  oh::Result<Event> event_behind_all();
  Status zero(Stream stream, DevicePtr memory, uint64_t size);
  // Whether all work of the stream has ended. Unless the context is lost, an error concerns the
  // query only.
  oh::Result<bool> is_idle(Stream stream);
  // Waits until the stream is idle or the context is lost. Returns false at the deadline.
  bool wait_idle(Stream stream, Deadline deadline);
  // An event that completes when all work that is now in `stream` has ended; null if the stream is
  // idle, unless `ask` is false. Return it with give_event(). OH_ERR_INVALID: the stream is being
  // captured.
  oh::Result<Event> event_behind(Stream stream, bool ask = true);
  // Whether the event is complete.
  oh::Result<bool> is_complete(Event event);

  // The address by which the device accesses host memory that is registered with the driver.
  oh::Result<DevicePtr> device_address(const void* host);

  // Allocates device memory that other processes can map.
  oh::Result<DevicePtr> allocate(uint64_t size);
  void free(DevicePtr memory);

  // Enables peer access from this device to `other`, if the other context is active and the
  // hardware supports it. Returns whether it is enabled. Caches the answer, unless the other
  // context is not active yet.
  bool reach(Device other);

  // Whether the context is lost: after a permanent error, or while the driver shuts down. Enqueued
  // work then writes nothing any more.
  bool is_lost() const { return lost_.load(std::memory_order_acquire); }
  // The first error that revealed the loss; ok if the context is not lost.
  Status loss() const;
  // Detects a loss after a call on a foreign handle has reported one.
  void ask_for_loss();

  // Number of driver objects that onehop holds: streams, events, pinned ranges, modules. For tests.
  size_t open_objects() const;

  // For the parts of a Gpu (Enter, Kernels, Pinned). failure() is Driver::failure() for calls on
  // onehop's own handles: it records a loss. A user's handle may belong to a context that is gone
  // while this one is alive.
  Status failure(Code code, const char* call, const std::string& details) const;
  Status keep_loss(Status status) const;
  // OH_ERR_CLOSED: the device was reset, so that the context is another one.
  Status check_context() const;
  // Adds `change` to open_objects().
  void count_objects(int change) {
    objects_.fetch_add(static_cast<size_t>(change), std::memory_order_relaxed);
  }

 private:
  Gpu();
  Status start(const Driver& driver, Device ordinal);
  oh::Result<Stream> make_stream();
  // Adds a page of done words.
  Status add_words();
  enum class Reach { kYes, kNo, kNotYet };
  Reach ask_reach(Device other);
  // Peer access to the other device's next context is not enabled yet.
  void forget_reach(Device other);
  struct WordPage;

  const Driver* driver_ = nullptr;
  DeviceFacts facts_;
  Context context_ = nullptr;
  uint64_t context_id_ = 0;  // unique for the life of the process
  mutable Mutex mutex_;
  std::vector<Stream> streams_ OH_GUARDED_BY(mutex_);  // idle
  std::vector<Event> events_ OH_GUARDED_BY(mutex_);    // idle
  std::vector<DoneWord> words_ OH_GUARDED_BY(mutex_);  // idle
  std::vector<std::unique_ptr<WordPage>> pages_ OH_GUARDED_BY(mutex_);
  std::vector<std::pair<Device, bool>> reached_ OH_GUARDED_BY(mutex_);  // cached answers of reach()
  mutable Status loss_ OH_GUARDED_BY(mutex_);
  Kernels kernels_;
  mutable std::atomic<bool> lost_{false};
  std::atomic<size_t> objects_{0};  // relaxed: a count that orders nothing
};

// Host memory that devices may write. Registers it with the driver while held, once per process for
// all endpoints. Release it before the memory is unmapped.
class Pinned {
 public:
  static oh::Result<std::shared_ptr<Pinned>> of(const std::shared_ptr<Gpu>& gpu, void* base,
                                                size_t size);
  // The same for memory that belongs to the caller alone. Null: the application has registered some
  // of it, and may unregister it at any time.
  static oh::Result<std::shared_ptr<Pinned>> only(const std::shared_ptr<Gpu>& gpu, void* base,
                                                  size_t size);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  // The GPU whose context has registered it.
  const Gpu& gpu() const { return *gpu_; }
  // False: the registration is gone with that context.
  bool valid() const { return !gpu_->is_lost(); }
  // The device address of `host`, which must lie within the range.
  DevicePtr device(const void* host) const {
    return device_ + (reinterpret_cast<uint64_t>(host) - reinterpret_cast<uint64_t>(base_));
  }

 private:
  Pinned() = default;
  Status start(const std::shared_ptr<Gpu>& gpu, void* base, size_t size);
  void stop();
  void unregister();

  bool listed_ = true;        // others may find it: of()
  std::shared_ptr<Gpu> gpu_;  // null: nothing is registered
  void* base_ = nullptr;      // rounded to pages
  size_t size_ = 0;
  DevicePtr device_ = 0;
  bool ours_ = false;  // onehop registered it and must unregister it
};

}  // namespace oh::cuda
