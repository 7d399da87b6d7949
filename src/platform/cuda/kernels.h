// SPDX-License-Identifier: Apache-2.0
//
// Kernels: the kernels of onehop on one Gpu. One module, loaded through the driver when the first
// of them is wanted, so that the library needs no CUDA runtime; unloaded with the Gpu.
//
// Threading: any thread. Loading holds a mutex of its own while the driver loads.
#pragma once

#include <atomic>

#include "base/status.h"
#include "base/sync.h"
#include "base/wire.h"
#include "platform/cuda/driver.h"

namespace oh::cuda {

class Gpu;

// How a kernel is divided.
struct Grid {
  unsigned blocks = 1;
  unsigned threads = 1;
  unsigned cluster = 1;  // blocks of one; more than 1 only where clusters() says so
  bool early = false;    // the kernel itself waits for those before it in the stream
};

class Kernels {
 public:
  // Part of `gpu`.
  explicit Kernels(Gpu& gpu) : gpu_(gpu) {}
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  // The names of kernels that are made ready; null: it is not wanted.
  struct Names {
    const char* batch = nullptr;
    const char* stream_batch = nullptr;
    const char* worker = nullptr;
  };
  // Loading may wait for any kernel that spins, so it is done before it is needed.
  Status load(ByteView image, const Names& names);
  // Null: they were not loaded.
  Function batch() const { return batch_.load(std::memory_order_acquire); }
  Function stream_batch() const { return stream_batch_.load(std::memory_order_acquire); }
  Function worker() const { return worker_.load(std::memory_order_acquire); }
  // Any kernel of the image, loaded now. It stays until the Gpu goes.
  oh::Result<Function> find(ByteView image, const char* name);
  // With the context entered, when the Gpu goes.
  void unload();

  // Enqueues a kernel with one argument, a struct.
  Status launch(Stream stream, Function kernel, unsigned grid, unsigned threads, void* argument);
  // The same for a kernel that writes into memory of other GPUs and says so: its fences wait for
  // what kernels of this sort have written, not for the application's. Also into a capture.
  Status launch_remote(Stream stream, Function kernel, const Grid& grid, void* argument);
  bool clusters() const;
  // Whether kernels may begin before those before them have ended, also in graphs.
  bool begins_early() const;

 private:
  Status load_module(ByteView image) OH_REQUIRES(mutex_);

  Gpu& gpu_;
  Mutex mutex_;  // held while the driver loads
  Module module_ OH_GUARDED_BY(mutex_) = nullptr;
  // Release: the kernel is loaded.
  std::atomic<Function> batch_{nullptr};
  std::atomic<Function> stream_batch_{nullptr};
  std::atomic<Function> worker_{nullptr};
};

}  // namespace oh::cuda
