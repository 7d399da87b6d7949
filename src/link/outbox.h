// SPDX-License-Identifier: Apache-2.0
//
// Outbox: frames without payload, which it queues while the channel has no room. Nothing else may
// be pushed past them.
//
// Threading: guarded by the link's lock.
#pragma once

#include <deque>

#include "transport/channel.h"

namespace oh {

class Outbox {
 public:
  void attach(Channel* channel) { channel_ = channel; }
  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }

  void send(const Frame& frame) {
    if (!waiting_.empty() || !channel_->push(frame)) waiting_.push_back(frame);
  }
  // True when no frame is left.
  bool flush() {
    while (!waiting_.empty() && channel_->push(waiting_.front())) waiting_.pop_front();
    return waiting_.empty();
  }
  void clear() { waiting_.clear(); }

 private:
  Channel* channel_ = nullptr;
  std::deque<Frame> waiting_;
};

}  // namespace oh
