// SPDX-License-Identifier: Apache-2.0
//
// When the operations in flight of one link were posted, for `onehop top`.
//
// Threading: guarded by the link's lock.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

#include "link/request.h"

namespace oh {

class PostedTimes {
 public:
  // Times do not descend.
  void add(const Request& request, int64_t now) {
    places_[&request] = times_.insert(times_.end(), now);
  }
  void remove(const Request& request) {
    auto found = places_.find(&request);
    if (found == places_.end()) return;
    times_.erase(found->second);
    places_.erase(found);
  }
  // 0: nothing is in flight.
  int64_t oldest() const { return times_.empty() ? 0 : times_.front(); }

 private:
  std::list<int64_t> times_;
  std::unordered_map<const Request*, std::list<int64_t>::iterator> places_;
};

}  // namespace oh
