// SPDX-License-Identifier: Apache-2.0
//
// Lanes: what one side of a link has for kernels: the slab that the other side maps, the page by
// which host and kernels tell each other what went wrong, and the peer's memory that kernels may
// put into. How a lane begins a new epoch is in stream_link.h.
//
//   MADE ──▶ CONNECTED (the other side's slab is mapped) ──▶ ABORTED (the link is lost or closed)
//
// Threading: any thread. Launches are made under no lock but the turn of what they take.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "kernels/stream.h"
#include "lane/import_places.h"
#include "lane/launch_turn.h"
#include "link/stats.h"
#include "memory/gpu_memory.h"
#include "platform/cuda/gpu.h"

namespace oh {

// The kernels of the stream domain, loaded on one GPU.
struct StreamKernels {
  cuda::Function one = nullptr;
  cuda::Function few = nullptr;
  cuda::Function many = nullptr;
  cuda::Function lanes = nullptr;
};

enum class LaneSide : uint32_t { kSend = 0, kRecv = 1 };

// The memory of a side, as long as kernels of either side may be at it.
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
  // Makes the slab, and begins to open all lanes. OH_ERR_NOT_VIABLE: no kernels, or the memory
  // cannot be mapped by others.
  static Result<std::unique_ptr<Lanes>> create(std::shared_ptr<cuda::Gpu> gpu, uint64_t slab_bytes,
                                               uint64_t small_max);
  // Kernels must be through. What they may still hold after a while is kept for ever.
  ~Lanes();

  const StreamKernels& kernels() const { return kernels_; }
  const std::shared_ptr<Slab>& slab() const { return slab_; }
  // Whether the lanes are open: others may have all of the GPU for a while.
  Result<bool> is_open();

  // The other side's slab, mapped at `base`; `holder` keeps it so. Both take the smaller size.
  void connect(cuda::DevicePtr base, uint64_t bytes, std::shared_ptr<void> holder);
  bool is_connected() const { return connected_.load(std::memory_order_acquire); }
  oh_lane_handle handle(uint32_t lane) const;
  uint32_t next_token();
  uint64_t most_buffered(uint32_t lane) const;
  uint64_t small_max() const { return small_max_; }

  // Memory of the peer's that kernels may put into from now on, by its number. The last that did
  // not fit are left out: their messages are staged.
  void add_import(uint32_t number, uint64_t size, cuda::DevicePtr base,
                  std::shared_ptr<void> holder);
  // No kernel begins to use it any more; it is let go of when none can be at it.
  void forget_import(uint32_t number);
  // Lets go of what was forgotten and is used by none; false: call again, some is still waiting.
  bool settle_imports();

  // Ends every wait of kernels, with that reason for the first of them.
  void abort();
  void abort(uint32_t lane, bool set);
  // A graph may have operations on it: it outlives the link.
  void keep() { kept_.store(true, std::memory_order_relaxed); }
  bool is_kept() const { return kept_.load(std::memory_order_relaxed); }

  // Why a half of a lane takes no more; ok: it does.
  Status failure(uint32_t lane, LaneSide side) const;
  // What went wrong since the last call, the first of it; ok: nothing did.
  Status take_error(const std::string& peer);
  // How kernels sent large messages, of all lanes.
  void count_large(Stats* stats) const;
  // Before a new epoch of the lane. What went wrong in the old one is still told.
  void clear_notice(uint32_t lane);
  // What kernels meet until then was refused, not forgotten: they tell of it.
  void set_resetting(uint32_t lane, bool resetting);

  // One step of a lane towards a new epoch; its answer is there when answered() says so.
  Status launch_step(uint32_t lane, kernels::LanesStep step, uint8_t epoch);
  // How many halves somebody held before the step.
  bool answered(uint32_t lane, uint32_t* busy) const;

  LaunchTurn& turn(uint32_t lane, LaneSide side) {
    return turns_[lane][static_cast<uint32_t>(side)];
  }
  // Whether the calls on both halves have ended on the device.
  bool is_through(uint32_t lane) const;

 private:
  struct Import {
    uint32_t number = 0;
    std::shared_ptr<void> holder;
  };
  struct Page;  // pinned, what kernels and the host share
  explicit Lanes(std::shared_ptr<cuda::Gpu> gpu) : gpu_(std::move(gpu)) {}
  Status start(uint64_t slab_bytes);
  Status load_kernels();
  Status open_all();
  // No kernel takes a lane any more. Whether all that had one are through.
  bool stop_all();
  cuda::DevicePtr on_device(const void* host) const { return pinned_->device(host); }
  Status write_entry(const ImportPlaces::Write& write) OH_REQUIRES(imports_mutex_);
  onehop::detail::LaneNotice* notices() const;
  Page* page() const { return reinterpret_cast<Page*>(memory_.data()); }
  Status take_untold();
  Status launch(uint32_t first, uint32_t count, kernels::LanesStep step, uint8_t epoch,
                uint64_t serial);
  bool settle_locked() OH_REQUIRES(imports_mutex_);
  Status take_failure(uint32_t lane, uint32_t side);
  Status take_warning(uint32_t lane, uint32_t side);
  Status take_signal_warning();

  std::shared_ptr<cuda::Gpu> gpu_;
  StreamKernels kernels_;
  uint64_t small_max_ = 0;
  Mapping memory_;
  std::shared_ptr<cuda::Pinned> pinned_;
  cuda::Stream stream_ = nullptr;
  std::shared_ptr<Slab> slab_;
  cuda::DevicePtr theirs_ = 0;    // before connected_
  uint64_t agreed_ = 0;           // bytes; likewise
  std::shared_ptr<void> holder_;  // likewise
  std::atomic<bool> connected_{false};
  std::atomic<bool> kept_{false};
  std::atomic<uint32_t> token_{0};

  Mutex imports_mutex_;  // held while the table is written
  std::vector<Import> imports_ OH_GUARDED_BY(imports_mutex_);
  ImportPlaces places_ OH_GUARDED_BY(imports_mutex_) = ImportPlaces(kernels::kImportShift);
  // Forgotten: until every sender was seen idle, or further than it was.
  std::vector<std::shared_ptr<void>> forgotten_ OH_GUARDED_BY(imports_mutex_);
  std::vector<std::shared_ptr<void>> leaving_ OH_GUARDED_BY(imports_mutex_);
  uint64_t look_ OH_GUARDED_BY(imports_mutex_) = 0;  // serial of the look under way; 0: none
  uint64_t seen_[OH_LANES] OH_GUARDED_BY(imports_mutex_) = {};  // states of senders; 0: it has left
  LaunchTurn turns_[OH_LANES][2];
  mutable Mutex mutex_;
  uint64_t serials_[OH_LANES] OH_GUARDED_BY(mutex_) = {};  // of the last step
  std::atomic<uint64_t> last_serial_{0};
  bool told_[OH_LANES][2] OH_GUARDED_BY(mutex_) = {};
  Status untold_ OH_GUARDED_BY(mutex_);  // of an epoch that has ended
};

}  // namespace oh
