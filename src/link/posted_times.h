// SPDX-License-Identifier: Apache-2.0
//
// When the operations in flight of one link were posted, for `onehop top`.
//
// Threading: guarded by the link's lock.
#pragma once

#include <cstdint>

#include "base/list.h"
#include "link/request.h"

namespace oh {

class PostedTimes {
 public:
  // Times do not descend.
  void add(Request& request, int64_t now) {
    request.outstanding_since = now;
    outstanding_.push_back(&request);
  }
  // A request that was added.
  void remove(Request& request) { outstanding_.erase(&request); }
  // 0: nothing is in flight.
  int64_t oldest() const {
    return outstanding_.empty() ? 0 : outstanding_.front()->outstanding_since;
  }

 private:
  List<Request, InOutstanding> outstanding_;
};

}  // namespace oh
