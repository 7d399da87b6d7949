// SPDX-License-Identifier: Apache-2.0
//
// SpareSegments: segments created in advance for the links that an endpoint will open, so that
// connect() does not wait for their memory.
//
// Threading: any thread, after open().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/sync.h"
#include "control/node.h"
#include "transport/shm/segment.h"

namespace oh {

class SpareSegments {
 public:
  // Creates the first segments, unless `why_not` states why this process cannot share memory.
  // `holder` keeps this object alive.
  void open(const Config& config, const Status& why_not, std::shared_ptr<Node> node, int numa_node,
            std::weak_ptr<void> holder);
  void close();
  // Whether links to other processes of this host share memory; `side` is for the error text.
  Status allowed(const char* side) const;
  // Returns a spare segment, or creates one.
  Result<std::unique_ptr<Segment>> take();

 private:
  void refill();

  std::string why_no_segments_;  // why links share no memory, without the side; empty: they do
  std::weak_ptr<void> holder_;
  std::shared_ptr<Node> node_;
  int numa_node_ = -1;
  Mutex mutex_;
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Segment>> spares_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
