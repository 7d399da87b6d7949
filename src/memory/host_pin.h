// SPDX-License-Identifier: Apache-2.0
//
// HostPin: registers a mapping of shared host memory with the driver when an engine or a kernel
// first accesses it. An engine copies from and to registered memory several times as fast as from
// and to other host memory, and only registered memory is open to kernels.
//
// Unregistering waits for kernels and for blocked streams, which may wait for a peer. So neither a
// data path does it nor the watcher, which finds out that peers are dead, but a thread that runs
// while there is something to unregister (UnusedPins).
//
// Threading: any thread. pin() calls the driver: not under a link's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/sync.h"
#include "platform/cuda/gpu.h"
#include "platform/os/fork.h"
#include "platform/os/handles.h"

namespace oh {

class HostPin {
 public:
  // Registers the mapping unless it is registered. Null: the application has registered some of it,
  // or the driver cannot, which is logged once; engines then copy slowly.
  std::shared_ptr<cuda::Pinned> pin(const std::shared_ptr<cuda::Gpu>& gpu, const Mapping& memory);
  // The mapping is given up. Unmaps it now if it is not registered.
  void leave(Mapping memory);

 private:
  // In a child of fork() another thread of the parent may have held the lock.
  const uint32_t generation_ = fork_generation();
  Mutex mutex_;
  std::shared_ptr<cuda::Pinned> pinned_ OH_GUARDED_BY(mutex_);
  bool failed_ OH_GUARDED_BY(mutex_) = false;
};

// Registered mappings that are no longer used.
class UnusedPins {
 public:
  static UnusedPins& instance();

  void add(Mapping memory, std::shared_ptr<cuda::Pinned> pinned);
  // Whether all of them are unregistered and unmapped.
  bool empty() const;

 private:
  struct Unused {
    Mapping memory;
    std::shared_ptr<cuda::Pinned> pinned;  // destroyed first
  };
  void release();

  mutable Mutex mutex_;
  std::vector<Unused> unused_ OH_GUARDED_BY(mutex_);
  bool running_ OH_GUARDED_BY(mutex_) = false;  // the thread
};

}  // namespace oh
