// SPDX-License-Identifier: Apache-2.0
//
// StreamMemory: the memory that streams and kernels of one link use: the peer's memory mapped here,
// local memory published to the peer, and memory held for copies in flight.
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
  // Sets the other end of a link within the process. Call first.
  void introduce(StreamMemory& other) {
    partner_ = &other;
    partner_owners_ = other.owners_;
  }
  // Kernels may use these lanes, which outlive this object.
  void open(Lanes& lanes) {
    // release: pairs with lanes().
    lanes_.store(&lanes, std::memory_order_release);
  }

  // Adds or removes a block of the peer's memory that is mapped here.
  void add_import(const std::shared_ptr<ImportedBlock>& block);
  void forget_import(uint32_t number);
  // Removes a block of local memory at the other end within the process.
  void forget_within(uint32_t number);
  struct Published {
    uint32_t number = 0;   // 0: the peer's kernels cannot access the memory
    bool reached = false;  // they put messages into it; false: it is not known that they do
  };
  // Publishes the memory of a receive to the peer.
  Published publish(const std::shared_ptr<const GpuExport>& exported);

  // Holds the memory until the stream's current work is done; if the stream is being captured,
  // until the endpoint is closed.
  void hold(cuda::Stream stream, bool capturing, std::shared_ptr<void> memory);
  // Call as the link ends: hands memory that copies may still use to the endpoint.
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
  StreamMemory* partner_ = nullptr;  // valid while partner_owners_ is held
  std::optional<StreamOwners> partner_owners_;
  std::atomic<Lanes*> lanes_{nullptr};
  bool settling_ = false;  // on the watcher's thread only
  Mutex mutex_;
  std::vector<std::shared_ptr<Held>> held_ OH_GUARDED_BY(mutex_);
  size_t many_held_ OH_GUARDED_BY(mutex_) = kFewHeld;  // at this size ended copies are released
};

}  // namespace oh
