// SPDX-License-Identifier: Apache-2.0
//
// A channel without a shared word for eager credit: kCredit frames return it, a quarter of it at a
// time.
//
// Threading: guarded by the link's lock.
#pragma once

#include <utility>

#include "transport/channel.h"

namespace oh {

class CountedCredit : public Channel {
 public:
  // `credit`: bytes that this side grants to the peer.
  explicit CountedCredit(uint64_t credit) : give_back_at_(credit / 4) {}

  uint64_t credit_returned() const final { return returned_; }
  void return_credit(uint64_t bytes) final { give_back_ += bytes; }
  // Returns the credit that a kCredit frame is due to return now; 0: less than a quarter.
  uint64_t take_due() { return give_back_ < give_back_at_ ? 0 : std::exchange(give_back_, 0); }
  // Handles a kCredit frame.
  void add_credit(uint64_t bytes) { returned_ += bytes; }

 private:
  uint64_t returned_ = 0;
  uint64_t give_back_at_;
  uint64_t give_back_ = 0;
};

}  // namespace oh
