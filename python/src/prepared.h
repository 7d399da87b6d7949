// SPDX-License-Identifier: Apache-2.0
//
// PreparedBatch: blocks that were checked once, with the local memory that they are in.
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
  // Empty once it is closed. A holder of its own, for posts that run without the GIL.
  std::shared_ptr<Owned<PreparedBatch>> batch;

  void close() {
    batch.reset();
    locals.reset();
  }
};

// Slices of remote regions begin somewhere inside: batches are given the whole and the offset.
void check_whole(const PyRemoteRegion& remote);

inline Access access_of(bool put) { return put ? Access::kRead : Access::kWrite; }

}  // namespace onehop::python
