// SPDX-License-Identifier: Apache-2.0
//
// Regions of a peer as the endpoint's GPU has them mapped.
//
// Threading: any thread.
#pragma once

#include <memory>

#include "endpoint/endpoint.h"

namespace oh {

struct MappedRegion {
  uint64_t base = 0;                           // 0: it is not mapped
  std::shared_ptr<ImportedBlock> import = {};  // what keeps it so; null: of this process
};

// OH_ERR_NOT_VIABLE: it is not mapped on this GPU; OH_ERR_RETIRED.
Result<MappedRegion> map_region(Endpoint& endpoint, Peer& peer, const RemoteTarget& target);

}  // namespace oh
