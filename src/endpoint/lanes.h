// SPDX-License-Identifier: Apache-2.0
//
// Lanes: what one side of a link has for kernels: the slab that the other side maps, the page by
// which host and kernels tell each other what went wrong, and the peer's memory that kernels may
// put into. How a lane begins a new epoch is in stream_link.h.
//
//   MADE ──▶ CONNECTED (the other side's slab is mapped) ──▶ ABORTED (the link is lost or closed)
//
// Threading: any thread. Launches are made without a lock of ours.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "kernels/stream.h"
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

class Lanes {
 public:
  // Makes the slab, all lanes open. OH_ERR_NOT_VIABLE: no kernels, or the memory cannot be mapped
  // by others.
  static Result<std::unique_ptr<Lanes>> create(std::shared_ptr<cuda::Gpu> gpu, uint64_t slab_bytes,
                                               uint64_t small_max);
  // Kernels must be through. What they may still hold after a while is kept for ever.
  ~Lanes();

  cuda::Gpu& gpu() { return *gpu_; }
  const StreamKernels& kernels() const { return kernels_; }
  const std::shared_ptr<const GpuExport>& slab() const { return export_; }
  uint64_t slab_bytes() const { return bytes_; }
  cuda::DevicePtr slab_address() const { return slab_; }

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
  // No kernel takes a lane any more. Whether all that had one are through.
  bool stop_all();
  // A graph may have operations on it: it outlives the link.
  void keep() { kept_.store(true, std::memory_order_relaxed); }
  bool is_kept() const { return kept_.load(std::memory_order_relaxed); }

  // Why a half of a lane takes no more; ok: it does.
  Status failure(uint32_t lane, LaneSide side) const;
  // What went wrong since the last call, the first of it; ok: nothing did.
  Status take_error(const std::string& peer);
  // Before a new epoch of the lane.
  void clear_notice(uint32_t lane);

  // One step of a lane towards a new epoch; its answer is there when answered() says so.
  Status launch_step(uint32_t lane, kernels::LanesStep step, uint8_t epoch);
  // How many halves somebody held before the step.
  bool answered(uint32_t lane, uint32_t* busy) const;

  // Calls on one half follow each other, also from several streams. Not while capturing.
  Status order(uint32_t lane, LaneSide side, cuda::Stream stream);
  Status ordered(uint32_t lane, LaneSide side, cuda::Stream stream);
  // Whether the calls on both halves have ended on the device.
  bool is_through(uint32_t lane) const;

 private:
  struct Import {
    uint32_t number = 0;
    uint32_t place = 0;  // in the table
    std::shared_ptr<void> holder;
  };
  struct Turn {
    cuda::Stream stream = nullptr;
    cuda::Event event = nullptr;
  };
  struct Page;  // pinned, what kernels and the host share
  explicit Lanes(std::shared_ptr<cuda::Gpu> gpu) : gpu_(std::move(gpu)) {}
  Status start(uint64_t slab_bytes);
  Status load_kernels();
  Status open_all();
  cuda::DevicePtr on_device(const void* host) const { return pinned_->device(host); }
  Status write_entry(uint32_t place, const onehop::detail::ImportEntry& entry)
      OH_REQUIRES(imports_mutex_);
  onehop::detail::LaneNotice* notices() const;
  Page* page() const { return reinterpret_cast<Page*>(memory_.data()); }
  Status launch(uint32_t first, uint32_t count, kernels::LanesStep step, uint8_t epoch,
                uint64_t serial);
  bool settle_locked() OH_REQUIRES(imports_mutex_);

  std::shared_ptr<cuda::Gpu> gpu_;
  StreamKernels kernels_;
  uint64_t bytes_ = 0;
  uint64_t small_max_ = 0;
  Mapping memory_;
  std::shared_ptr<cuda::Pinned> pinned_;
  cuda::Stream stream_ = nullptr;
  cuda::DevicePtr slab_ = 0;
  std::shared_ptr<const GpuExport> export_;
  cuda::DevicePtr theirs_ = 0;    // before connected_
  uint64_t agreed_ = 0;           // bytes; likewise
  std::shared_ptr<void> holder_;  // likewise
  std::atomic<bool> connected_{false};
  std::atomic<bool> kept_{false};
  std::atomic<uint32_t> token_{0};

  Mutex imports_mutex_;  // held while the table is written
  std::vector<Import> imports_ OH_GUARDED_BY(imports_mutex_);
  // Numbers, by place.
  std::vector<uint64_t> table_ OH_GUARDED_BY(imports_mutex_) =
      std::vector<uint64_t>(size_t{1} << kernels::kImportShift);
  // Forgotten: until every sender was seen idle, or further than it was.
  std::vector<std::shared_ptr<void>> forgotten_ OH_GUARDED_BY(imports_mutex_);
  std::vector<std::shared_ptr<void>> leaving_ OH_GUARDED_BY(imports_mutex_);
  uint64_t look_ OH_GUARDED_BY(imports_mutex_) = 0;  // serial of the look under way; 0: none
  uint64_t seen_[OH_LANES] OH_GUARDED_BY(imports_mutex_) = {};  // states of senders; 0: it has left
  mutable Mutex mutex_;
  Turn turns_[OH_LANES][2] OH_GUARDED_BY(mutex_);
  uint64_t serials_[OH_LANES] OH_GUARDED_BY(mutex_) = {};  // of the last step
  std::atomic<uint64_t> last_serial_{0};
  bool told_[OH_LANES][2] OH_GUARDED_BY(mutex_) = {};
};

}  // namespace oh
