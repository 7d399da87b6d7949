// SPDX-License-Identifier: Apache-2.0
//
// The worker of a GPU, from the host's side: small copies go to a kernel that runs already, in less
// than half the time of the copy engine. It is launched while copies are frequent, stays for a
// millisecond at most, and keeps away for as long: what others do with the GPU (the first launch of
// a kernel, cudaFree) waits for kernels that run. All workers of a host stay and keep away at the
// same times, by its clock, so that both directions of an exchange have theirs at once.
//
// Threading: any thread; one that finds another thread here takes the copy engine.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "base/sync.h"
#include "kernels/worker.h"
#include "platform/cuda/gpu.h"
#include "platform/os/handles.h"

namespace oh {

class Worker {
 public:
  // Longer copies are faster by the engine.
  static constexpr uint64_t kLongest = 64 * 1024;

  // The one of this GPU and process. The kernels must have been loaded.
  static Result<std::shared_ptr<Worker>> of(const std::shared_ptr<cuda::Gpu>& gpu);
  // Waits until the kernel has left.
  ~Worker();

  // Addresses as the GPU sees them; behind the bytes `value` is written to `word`.
  struct Copy {
    uint64_t to = 0;
    uint64_t from = 0;
    uint64_t size = 0;
    cuda::DevicePtr word = 0;
    uint64_t value = 0;
  };
  // Whether the kernel does it; else nothing happened. A lost context shows by stream() alone.
  bool copy(const Copy& copy);
  // A copy that it could have done went by the engine: calls the kernel, if they come often.
  void call();
  // Whether all that it was given is done.
  bool is_idle();
  // The kernel's own.
  cuda::Stream stream() const { return stream_; }

 private:
  Worker() = default;
  Status start(const std::shared_ptr<cuda::Gpu>& gpu);
  bool give(const onehop::detail::Command& command) OH_REQUIRES(lock_);
  bool taken_by_leaver() OH_REQUIRES(lock_);
  uint64_t state() const;
  Status launch(uint64_t run, uint64_t stay);
  uint8_t* at(size_t offset) const { return memory_.data() + offset; }

  std::shared_ptr<cuda::Gpu> gpu_;
  cuda::Stream stream_ = nullptr;
  Mapping memory_;
  std::shared_ptr<cuda::Pinned> pinned_;  // goes before the memory
  onehop::detail::CommandRing ring_{};
  SpinLock lock_;  // copies only try it
  uint64_t position_ OH_GUARDED_BY(lock_) = 0;
  uint64_t through_ OH_GUARDED_BY(lock_) = 0;  // of the ring, as last looked up
  uint64_t run_ OH_GUARDED_BY(lock_) = 0;
  bool away_ OH_GUARDED_BY(lock_) = true;        // the last run was seen to be over
  int64_t may_return_ OH_GUARDED_BY(lock_) = 0;  // not before
  int64_t called_ OH_GUARDED_BY(lock_) = 0;      // when a copy last went by the engine
};

}  // namespace oh
