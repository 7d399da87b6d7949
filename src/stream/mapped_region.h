// SPDX-License-Identifier: Apache-2.0
//
// Regions of a peer that are mapped on the endpoint's GPU.
//
// Threading: any thread.
#pragma once

#include <memory>

#include "endpoint/endpoint.h"

namespace oh {

struct MappedRegion {
  uint64_t base = 0;                           // 0: not mapped
  std::shared_ptr<ImportedBlock> import = {};  // keeps the mapping; null: memory of this process
  bool in_host = false;                        // host memory, which `host` keeps registered
  PinnedView host = {};
};

enum class RegionIn : uint8_t { kDevice, kDeviceOrHost };

// Registers shared host memory with the driver; other host memory of this process must be pinned.
// OH_ERR_NOT_VIABLE: the region is not mapped on this GPU. OH_ERR_RETIRED: it is not registered any
// more.
Result<MappedRegion> map_region(Endpoint& endpoint, Peer& peer, const RemoteTarget& target,
                                RegionIn where);

}  // namespace oh
