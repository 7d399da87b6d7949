// SPDX-License-Identifier: Apache-2.0
//
// CheckedBatch: the blocks of a caller's batch, checked, without empty ones, neighbours joined, and
// grouped by local memory and remote region.
//
// Threading: a value; move() lets several posts read it at once.
#pragma once

#include <memory>
#include <vector>

#include "capi/handles.h"

namespace oh {

struct CheckedBatch {
  bool put = false;
  BlockList blocks = {};
  std::vector<std::shared_ptr<const AttachedRegion>> regions = {};  // which the parts are in
  std::vector<MovePart> parts = {};                                 // at least one

  Move move(BatchPlan* plan = nullptr) const {
    return {.put = put, .parts = parts, .plan = plan, .list = blocks};
  }
};

// One piece of local memory and one remote region; `packed`: whatever the batch says.
Result<CheckedBatch> read_batch(const oh_peer& peer, const oh_remote_region& remote,
                                const oh_batch& given, bool put, bool packed = false);
// Many of both; the regions were attached at the peer.
Result<CheckedBatch> read_batch(const oh_peer& peer, const oh_region_batch& given, bool put);

}  // namespace oh
