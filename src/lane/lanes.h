// SPDX-License-Identifier: Apache-2.0
//
// Lanes: this side of a link for stream kernels: the slab that the peer maps, the kernels
// themselves, and the order of launches. lane_resets.h moves a lane to a new epoch.
//
//   MADE ──▶ CONNECTED (the peer's slab is mapped) ──▶ ABORTED (the link is lost or closed)
//
// Threading: any thread. Launches lock only the turns of the halves that they use.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "kernels/stream.h"
#include "lane/import_table.h"
#include "lane/lane_commands.h"
#include "lane/lane_notices.h"
#include "lane/launch_turn.h"
#include "memory/gpu_memory.h"
#include "platform/cuda/gpu.h"

namespace oh {

// The kernels of the stream domain, loaded on one GPU.
struct StreamKernels {
  cuda::Function one = nullptr;
  cuda::Function large = nullptr;
  cuda::Function few = nullptr;
  cuda::Function many = nullptr;
  cuda::Function lanes = nullptr;
  cuda::Function atomic = nullptr;
  // The code synchronizes clusters, and itself waits for the previous kernel of the stream.
  bool clusters = false;
};

// The slab's device memory. It lives as long as kernels of either side may use it.
class Slab {
 public:
  static Result<std::shared_ptr<Slab>> create(std::shared_ptr<cuda::Gpu> gpu, uint64_t bytes);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  cuda::DevicePtr address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  const std::shared_ptr<const GpuExport>& exported() const { return export_; }

 private:
  Slab(std::shared_ptr<cuda::Gpu> gpu, uint64_t bytes) : gpu_(std::move(gpu)), bytes_(bytes) {}

  std::shared_ptr<cuda::Gpu> gpu_;
  cuda::DevicePtr address_ = 0;
  uint64_t bytes_;
  std::shared_ptr<const GpuExport> export_;
};

class Lanes {
 public:
  // Allocates the slab and begins to open all lanes. OH_ERR_NOT_VIABLE: the kernels are missing.
  static Result<std::unique_ptr<Lanes>> create(std::shared_ptr<cuda::Gpu> gpu, uint64_t slab_bytes,
                                               uint64_t small_max);
  // Waits up to 2 s for kernels, including those that have not begun. Leaks memory that they may
  // still use.
  ~Lanes();

  const StreamKernels& kernels() const { return kernels_; }
  const std::shared_ptr<Slab>& slab() const { return slab_; }
  // Whether the lanes are open. Other work on the GPU may delay the kernels that open them.
  Result<bool> is_open();

  // What the two sides of a link tell each other. Both use the smaller of the two values.
  struct Sizes {
    uint64_t slab = 0;   // bytes
    uint64_t small = 0;  // bytes of the largest message that goes by lines
  };
  Sizes sizes() const { return {slab_->bytes(), small_max_}; }
  // Sets the peer's slab, mapped at `base`; `holder` keeps the mapping.
  void connect(cuda::DevicePtr base, const Sizes& theirs, std::shared_ptr<void> holder);
  bool is_connected() const { return connected_.load(std::memory_order_acquire); }
  oh_lane_handle handle(uint32_t lane) const;
  uint32_t next_token();
  uint64_t most_buffered(uint32_t lane) const;

  LaneNotices& notices() { return notices_; }
  const LaneNotices& notices() const { return notices_; }
  // Memory of the peer that kernels may put into.
  ImportTable& imports() { return imports_; }
  // Steps of a lane towards a new epoch.
  LaneCommands& commands() { return commands_; }

  // Keeps the lanes beyond the link: a captured graph may use them.
  void keep() { kept_.store(true, std::memory_order_relaxed); }
  bool is_kept() const { return kept_.load(std::memory_order_relaxed); }

  LaunchTurn& turn(uint32_t lane, LaneSide side) {
    return turns_[lane][static_cast<uint32_t>(side)];
  }
  // Whether the launches on both halves have ended on the device.
  bool is_through(uint32_t lane) const;
  // Launches of signals and signal waits.
  Launches& apart() { return apart_; }

 private:
  // Pinned memory that kernels and the host share.
  struct Page {
    LaneNotices::Page notices;
    LaneCommands::Answers answers;
  };
  explicit Lanes(std::shared_ptr<cuda::Gpu> gpu) : gpu_(std::move(gpu)) {}
  Status start(uint64_t slab_bytes);
  Status load_kernels();
  Status open_all();
  // Makes all lanes refuse kernels. Returns whether all kernels that held a lane, or were launched,
  // have ended.
  bool stop_all();
  bool all_through() const;
  cuda::DevicePtr on_device(const void* host) const { return pinned_->device(host); }
  Page* page() const { return reinterpret_cast<Page*>(memory_.data()); }

  std::shared_ptr<cuda::Gpu> gpu_;
  StreamKernels kernels_;
  uint64_t small_max_ = 0;
  Mapping memory_;
  std::shared_ptr<cuda::Pinned> pinned_;
  cuda::Stream stream_ = nullptr;
  std::shared_ptr<Slab> slab_;
  cuda::DevicePtr theirs_ = 0;    // written before connected_
  Sizes agreed_;                  // likewise
  std::shared_ptr<void> holder_;  // likewise
  std::atomic<bool> connected_{false};
  std::atomic<bool> kept_{false};
  std::atomic<uint32_t> token_{0};

  LaneNotices notices_;
  LaneCommands commands_;
  ImportTable imports_{commands_};
  LaunchTurn turns_[OH_LANES][2];
  Launches apart_;
};

}  // namespace oh
