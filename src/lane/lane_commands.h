// SPDX-License-Identifier: Apache-2.0
//
// LaneCommands: runs the kernel that changes the lanes of one slab, and reads its answers from
// pinned memory.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <memory>

#include "base/status.h"
#include "base/sync.h"
#include "kernels/stream.h"
#include "lane/import_places.h"
#include "platform/cuda/gpu.h"

namespace oh {

class LaneCommands {
 public:
  // The kernel's answers, in pinned memory that is zero at first. Queries have their own answers,
  // since a step may be in progress.
  struct Answers {
    kernels::LanesAnswer steps[OH_LANES];
    kernels::LanesAnswer looks[OH_LANES];
  };
  // The kernel, and the memory that it works on.
  struct Target {
    std::shared_ptr<cuda::Gpu> gpu;
    cuda::Function kernel = nullptr;
    cuda::Stream stream = nullptr;
    cuda::DevicePtr slab = 0;
    Answers* answers = nullptr;
    cuda::DevicePtr answers_on_device = 0;
  };
  // Call before any command.
  void open(Target target, uint64_t slab_bytes);
  // Sets the slab size that both sides have agreed on.
  void agree(uint64_t slab_bytes) {
    // release: pairs with launch().
    slab_bytes_.store(slab_bytes, std::memory_order_release);
  }

  // One step of a lane, or of all.
  Status step(uint32_t lane, kernels::LanesStep step, uint8_t epoch);
  Status step_all(kernels::LanesStep step, uint8_t epoch);
  // Whether the lane's last step() has ended. `busy`: how many of its halves were held before it.
  bool answered(uint32_t lane, uint32_t* busy) const;
  // Whether any half was held before the last completed step_all().
  bool any_busy() const;

  // Starts to read the state of every sender. Returns the serial to pass to looked(), which returns
  // false until the lane's answer has arrived.
  Result<uint64_t> look();
  bool looked(uint64_t serial, uint32_t lane, uint64_t* sender) const;

  Status write_import(const ImportPlaces::Write& write);

 private:
  Status launch(uint32_t first, uint32_t count, kernels::LanesArgs args);
  uint64_t next_serial() { return last_serial_.fetch_add(1) + 1; }

  Target target_;
  std::atomic<uint64_t> slab_bytes_{0};
  std::atomic<uint64_t> last_serial_{0};
  mutable Mutex mutex_;
  uint64_t serials_[OH_LANES] OH_GUARDED_BY(mutex_) = {};  // of each lane's last step
};

}  // namespace oh
