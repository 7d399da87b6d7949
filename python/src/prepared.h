// SPDX-License-Identifier: Apache-2.0
//
// PreparedBatch: blocks that were checked once, and their local memory.
//
// Threading: needs the GIL.
#pragma once

#include <memory>

#include "one_sided.h"

namespace onehop::python {

struct PyPreparedBatch {
  std::shared_ptr<Link> link;
  bool put = true;
  std::shared_ptr<Locals> locals;
  // Null after close(). A shared holder, for posts that run without the GIL.
  std::shared_ptr<Owned<PreparedBatch>> batch;

  void close() {
    batch.reset();
    locals.reset();
  }
};

// Refuses slices of remote regions: batches take the whole region and offsets.
void check_whole(const PyRemoteRegion& remote);

inline Access access_of(bool put) { return put ? Access::kRead : Access::kWrite; }

}  // namespace onehop::python
