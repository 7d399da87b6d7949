// SPDX-License-Identifier: Apache-2.0
//
// A channel without a shared word for eager credit: kCredit frames return it, a quarter of it at a
// time.
//
// Threading: guarded by the link's lock.
#pragma once

#include "transport/channel.h"

namespace oh {

class CountedCredit : public Channel {
 public:
  // `credit`: bytes that this side grants to the peer.
  explicit CountedCredit(uint64_t credit) : give_back_at_(credit / 4) {}

  uint64_t credit_returned() const final { return returned_; }
  void return_credit(uint64_t bytes) final {
    give_back_ += bytes;
    if (give_back_ < give_back_at_) return;
    Frame frame;
    frame.type = FrameType::kCredit;
    frame.length = give_back_;
    if (push(frame)) give_back_ = 0;
  }
  // Handles a kCredit frame.
  void add_credit(uint64_t bytes) { returned_ += bytes; }

 private:
  uint64_t returned_ = 0;
  uint64_t give_back_at_;
  uint64_t give_back_ = 0;
};

}  // namespace oh
