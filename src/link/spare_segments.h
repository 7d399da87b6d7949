// SPDX-License-Identifier: Apache-2.0
//
// SpareSegments: segments made ahead for the links that an endpoint will open, so that connect()
// does not wait for their memory.
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
  // Makes the first ones, unless `why_not` says that this process has no memory to share. `holder`
  // keeps this object.
  void open(const Config& config, const Status& why_not, std::shared_ptr<Node> node, int numa_node,
            std::weak_ptr<void> holder);
  void close();
  // Whether links to other processes of this host share memory; `side` is for the text.
  Status allowed(const char* side) const;
  // One that was made ahead, or a fresh one.
  Result<std::unique_ptr<Segment>> take();

 private:
  void refill();

  std::string why_no_segments_;  // why there are none, without the side; empty: there are
  std::weak_ptr<void> holder_;
  std::shared_ptr<Node> node_;
  int numa_node_ = -1;
  Mutex mutex_;
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Segment>> spares_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
