// SPDX-License-Identifier: Apache-2.0
//
// Worker: the host's side of a GPU's worker kernel, which does small copies in less than half the
// time of the copy engine. The kernel is launched while copies are frequent. It runs for at most a
// millisecond, then pauses for as long, since other uses of the GPU (the first launch of a kernel,
// cudaFree) wait for running kernels. All workers of a host run in the same periods of its clock,
// so that both directions of an exchange have a worker at the same time.
//
// Threading: any thread; a thread that finds the worker in use by another takes the copy engine.
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
  // Bytes. The copy engine is faster for longer copies.
  static constexpr uint64_t kLongest = 64 * 1024;

  // The worker of this GPU in this process. The kernels must have been loaded.
  static Result<std::shared_ptr<Worker>> of(const std::shared_ptr<cuda::Gpu>& gpu);
  // Waits up to 1 s until the kernel has ended.
  ~Worker();

  // Device addresses. After the bytes, `value` is written to `word`.
  struct Copy {
    uint64_t to = 0;
    uint64_t from = 0;
    uint64_t size = 0;
    cuda::DevicePtr word = 0;
    uint64_t value = 0;
  };
  // Gives the copy to the kernel. False: nothing was done. Query stream() to detect a lost context.
  bool copy(const Copy& copy);
  // Call when the copy engine did a copy that the worker could have done. Launches the kernel if
  // such copies are frequent.
  void call();
  // Whether all copies given to the worker are done.
  bool is_idle();
  // The kernel's stream.
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
  std::shared_ptr<cuda::Pinned> pinned_;  // destroyed before the memory
  onehop::detail::CommandRing ring_{};
  SpinLock lock_;  // copy() only tries it
  uint64_t position_ OH_GUARDED_BY(lock_) = 0;
  uint64_t through_ OH_GUARDED_BY(lock_) = 0;  // of the ring, as last read
  uint64_t run_ OH_GUARDED_BY(lock_) = 0;
  bool away_ OH_GUARDED_BY(lock_) = true;        // the last run was seen to have ended
  int64_t may_return_ OH_GUARDED_BY(lock_) = 0;  // earliest next launch
  int64_t called_ OH_GUARDED_BY(lock_) = 0;      // time of the last call()
};

}  // namespace oh
