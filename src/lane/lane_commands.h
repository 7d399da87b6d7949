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
  // Where the answers are: pinned, zero. Looks have answers of their own: a step may be in
  // progress.
  struct Answers {
    kernels::LanesAnswer steps[OH_LANES];
    kernels::LanesAnswer looks[OH_LANES];
  };
  // What the kernel works on.
  struct Target {
    std::shared_ptr<cuda::Gpu> gpu;
    cuda::Function kernel = nullptr;
    cuda::Stream stream = nullptr;
    cuda::DevicePtr slab = 0;
    Answers* answers = nullptr;
    cuda::DevicePtr answers_on_device = 0;
  };
  // Before any command.
  void open(Target target, uint64_t slab_bytes);
  // Both sides use that much of the slab from now on.
  void agree(uint64_t slab_bytes) {
    // release: pairs with launch().
    slab_bytes_.store(slab_bytes, std::memory_order_release);
  }

  // One step of a lane, or of all.
  Status step(uint32_t lane, kernels::LanesStep step, uint8_t epoch);
  Status step_all(kernels::LanesStep step, uint8_t epoch);
  // Whether the last step() of the lane has ended, and how many halves of it were held before.
  bool answered(uint32_t lane, uint32_t* busy) const;
  // Of the last step_all() that has ended: whether any half was held before.
  bool any_busy() const;

  // Reads the state of every sender; its serial, by which looked() finds the answers.
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
  uint64_t serials_[OH_LANES] OH_GUARDED_BY(mutex_) = {};  // of the last step
};

}  // namespace oh
