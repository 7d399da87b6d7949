// SPDX-License-Identifier: Apache-2.0
//
// StreamMemory: the memory that streams and kernels of one link use: the peer's that is mapped
// here, ours that the peer gets to know, and memory that copies in progress hold.
//
// Threading: any thread; removed memory is released on the watcher's thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lane/lanes.h"
#include "lane/stream_domain.h"
#include "link/link.h"

namespace oh {

class StreamMemory {
 public:
  // `within_process`: the link has no connection.
  StreamMemory(Link& link, const StreamOwners& owners, std::shared_ptr<cuda::Gpu> gpu,
               bool within_process);
  ~StreamMemory();
  // The other end within the process, before anything else.
  void introduce(StreamMemory& other) {
    partner_ = &other;
    partner_owners_ = other.owners_;
  }
  // Kernels may use these lanes; they outlive this.
  void open(Lanes& lanes) {
    // release: pairs with lanes().
    lanes_.store(&lanes, std::memory_order_release);
  }

  // The other side may have mapped our memory, or we its.
  void add_import(const std::shared_ptr<ImportedBlock>& block);
  void forget_import(uint32_t number);
  // Memory of ours that the other end within the process may have.
  void forget_within(uint32_t number);
  // For a receive: tells the peer the memory. Its number; 0: the peer's kernels cannot reach it.
  uint32_t publish(const std::shared_ptr<const GpuExport>& exported);

  // Holds the memory until the work that the stream has now is done; for ever if it is captured.
  void hold(cuda::Stream stream, bool capturing, std::shared_ptr<void> memory);
  // All of it, as the link ends: the endpoint holds what copies may still use.
  void give_up();

 private:
  static constexpr size_t kFewHeld = 16;
  struct Held;  // memory that a copy may use

  Lanes* lanes() const { return lanes_.load(std::memory_order_acquire); }
  void settle_later();
  bool drop_held();

  Link& link_;
  const StreamOwners& owners_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const bool within_process_;
  StreamMemory* partner_ = nullptr;  // while partner_owners_ are held
  std::optional<StreamOwners> partner_owners_;
  std::atomic<Lanes*> lanes_{nullptr};
  bool settling_ = false;  // on the watcher's thread only
  Mutex mutex_;
  std::vector<std::shared_ptr<Held>> held_ OH_GUARDED_BY(mutex_);
  size_t many_held_ OH_GUARDED_BY(mutex_) = kFewHeld;  // from here on they are looked through
};

}  // namespace oh
