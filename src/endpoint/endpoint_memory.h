// SPDX-License-Identifier: Apache-2.0
//
// EndpointMemory: the registered regions of one endpoint, and the attachment of its peers' regions.
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
  // Retires the region and waits until no peer accesses it. Also works on a closed endpoint, where
  // it returns OH_ERR_CLOSED.
  Status deregister(const RegionRecord& region, Deadline deadline);
  // Returns the region's descriptor. From now on the progress thread serves peers that cannot
  // access our memory directly.
  Bytes export_region(const RegionRecord& region);
  // Returns the descriptor without starting the progress thread: for a region whose only user is
  // the peer, which moves the bytes itself.
  Bytes describe(const RegionRecord& region) const;
  Result<RemoteTarget> attach(Peer& peer, ByteView descriptor, Deadline deadline);
  // Call once for each attach(). The mapping may then be removed.
  static void detach(const RemoteTarget& target);

  // Starts the progress thread if a peer needs it for exported regions.
  void serve_exports();
  // Keeps a closed peer that is still inside a one-sided operation, so that deregister() waits for
  // it.
  void link_closed(const std::shared_ptr<Peer>& peer);
  // Releases those peers. Called by the endpoint's destructor.
  void forget_closed();

 private:
  std::vector<std::shared_ptr<Peer>> may_be_inside() const;
  bool is_outside(Peer& peer, Deadline deadline) const;

  Endpoint& endpoint_;
  RegionTable regions_;
  std::atomic<bool> exported_{false};  // a descriptor of a local region was handed out
  mutable Mutex mutex_;
  // Closed peers that were still inside a one-sided operation.
  std::vector<std::shared_ptr<Peer>> closed_inside_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
