// SPDX-License-Identifier: Apache-2.0
//
// CheckedBatch: the blocks of a caller's batch after checking: without empty blocks, with adjacent
// blocks merged, and grouped by local memory and remote region.
//
// Threading: a value; several posts may read it concurrently through move().
#pragma once

#include <memory>
#include <vector>

#include "capi/handles.h"

namespace oh {

struct CheckedBatch {
  bool put = false;
  BlockList blocks = {};
  std::vector<std::shared_ptr<const AttachedRegion>> regions = {};  // the regions of `parts`
  std::vector<MovePart> parts = {};                                 // at least one

  Move move(BatchPlan* plan = nullptr) const {
    return {.put = put, .parts = parts, .plan = plan, .list = blocks};
  }
};

// Reads a batch between one piece of local memory and one region. `packed` overrides the batch's
// member.
Result<CheckedBatch> read_batch(const oh_peer& peer, const oh_remote_region& remote,
                                const oh_batch& given, bool put, bool packed = false);
// Reads a batch between many pieces of local memory and many regions; checks that the regions were
// attached at `peer`.
Result<CheckedBatch> read_batch(const oh_peer& peer, const oh_region_batch& given, bool put);

}  // namespace oh
