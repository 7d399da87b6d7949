// SPDX-License-Identifier: Apache-2.0
//
// EndpointMemory: the regions of one endpoint, and how regions of its peers are attached.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/sync.h"
#include "link/regions.h"
#include "path/path.h"

namespace oh {

class Endpoint;
class Peer;

class EndpointMemory {
 public:
  EndpointMemory(Endpoint& endpoint, ControlPage& page) : endpoint_(endpoint), regions_(page) {}

  RegionTable& regions() { return regions_; }
  Result<std::shared_ptr<RegionRecord>> register_region(
      void* base, uint64_t length, RegionAccess access = RegionAccess::kReadWrite);
  // Waits until no peer accesses the region; of a closed endpoint, too, which is OH_ERR_CLOSED
  // then.
  Status deregister(const RegionRecord& region, Deadline deadline);
  // Its descriptor; from now on peers that cannot reach our memory need our progress.
  Bytes export_region(const RegionRecord& region);
  // The same of one that only its peer gets, which moves the bytes itself.
  Bytes describe(const RegionRecord& region) const;
  Result<RemoteTarget> attach(Peer& peer, ByteView descriptor, Deadline deadline);
  // Once for each attach(): what was mapped for it may be unmapped.
  static void detach(const RemoteTarget& target);

  // Starts the progress thread if a peer needs it for exported regions.
  void serve_exports();
  // deregister() waits for a closed peer that is still inside a one-sided operation.
  void link_closed(const std::shared_ptr<Peer>& peer);
  // The endpoint is destroyed.
  void forget_closed();

 private:
  std::vector<std::shared_ptr<Peer>> may_be_inside() const;
  bool is_outside(Peer& peer, Deadline deadline) const;

  Endpoint& endpoint_;
  RegionTable regions_;
  std::atomic<bool> exported_{false};  // a region of ours is known to others
  mutable Mutex mutex_;
  // Closed peers that were still inside a one-sided operation.
  std::vector<std::shared_ptr<Peer>> closed_inside_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
