// SPDX-License-Identifier: Apache-2.0
//
// PostedTimes: when the operations in flight on one link were posted, for `onehop top`.
//
// Threading: guarded by the link's lock.
#pragma once

#include <cstdint>

#include "base/list.h"
#include "link/request.h"

namespace oh {

class PostedTimes {
 public:
  // `now` must not decrease from call to call.
  void add(Request& request, int64_t now) {
    request.outstanding_since = now;
    outstanding_.push_back(&request);
  }
  // The request must have been added.
  void remove(Request& request) { outstanding_.erase(&request); }
  // Post time of the oldest operation; 0: none is in flight.
  int64_t oldest() const {
    return outstanding_.empty() ? 0 : outstanding_.front()->outstanding_since;
  }

 private:
  List<Request, InOutstanding> outstanding_;
};

}  // namespace oh
