// SPDX-License-Identifier: Apache-2.0
//
// Kernels: onehop's kernels on one Gpu. One module, loaded through the driver on first use, so that
// the library needs no CUDA runtime. Unloaded with the Gpu.
//
// Threading: any thread. A separate mutex is held while the driver loads.
#pragma once

#include <atomic>

#include "base/status.h"
#include "base/sync.h"
#include "base/wire.h"
#include "platform/cuda/driver.h"

namespace oh::cuda {

class Gpu;

// Launch configuration.
struct Grid {
  unsigned blocks = 1;
  unsigned threads = 1;
  unsigned cluster = 1;  // blocks per cluster; more than 1 requires runs_clusters()
  bool early = false;    // may start early: the kernel waits for earlier ones itself
};

class Kernels {
 public:
  // `gpu` owns this object.
  explicit Kernels(Gpu& gpu) : gpu_(gpu) {}
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  // Names of the kernels to load; null: not wanted.
  struct Names {
    const char* batch = nullptr;
    const char* stream_batch = nullptr;
    const char* stream_few_blocks = nullptr;
    const char* worker = nullptr;
  };
  // Loads kernels. The driver may wait for running kernels meanwhile, so load before the kernels
  // are needed.
  Status load(ByteView image, const Names& names);
  // Null if the kernel was not loaded.
  Function batch() const { return batch_.load(std::memory_order_acquire); }
  Function stream_batch() const { return stream_batch_.load(std::memory_order_acquire); }
  Function stream_few_blocks() const { return stream_few_blocks_.load(std::memory_order_acquire); }
  Function worker() const { return worker_.load(std::memory_order_acquire); }
  // Loads any kernel of the image. Valid as long as the Gpu.
  oh::Result<Function> find(ByteView image, const char* name);
  // Unloads the module. Precondition: the context is entered.
  void unload();

  // Enqueues a kernel whose only argument is a struct.
  Status launch(Stream stream, Function kernel, unsigned grid, unsigned threads, void* argument);
  // The same for a kernel that writes into memory of other GPUs. It runs in the remote memory
  // synchronization domain: its fences wait only for writes of kernels of that domain, not for the
  // application's. Can be captured.
  Status launch_remote(Stream stream, Function kernel, const Grid& grid, void* argument);
  // Whether the kernel's code is of an architecture with clusters, sm_90 or later. The driver may
  // have compiled it from PTX of an older one.
  oh::Result<bool> runs_clusters(Function kernel);
  // Whether the driver starts kernels of such code before earlier ones have ended (programmatic
  // launch), also in graphs.
  bool begins_early() const;

 private:
  Status load_module(ByteView image) OH_REQUIRES(mutex_);

  Gpu& gpu_;
  Mutex mutex_;  // held while the driver loads
  Module module_ OH_GUARDED_BY(mutex_) = nullptr;
  // Release store after loading; pairs with the acquire of the accessors.
  std::atomic<Function> batch_{nullptr};
  std::atomic<Function> stream_batch_{nullptr};
  std::atomic<Function> stream_few_blocks_{nullptr};
  std::atomic<Function> worker_{nullptr};
};

}  // namespace oh::cuda
