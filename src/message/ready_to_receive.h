// SPDX-License-Identifier: Apache-2.0
//
// ReadyToReceive (RTR): tells the sender the buffer of a posted receive, together with the number
// of the message that it is for. Over shared memory the sender gets a transfer slot; over UCX our
// own channel writes the message into the buffer.
//
// Threading: guarded by the link's lock.
#pragma once

#include "path/direct/transfers.h"

namespace oh {

class ReadyToReceive {
 public:
  ReadyToReceive(Link& link, Transfers& transfers) : link_(link), transfers_(transfers) {}

  // Whether the receive gains by it. Not for wildcards.
  bool may_offer(const Request& request) const;
  // Offers the receive to the message `number` of its tag. Without room nothing is offered.
  void offer(Request* request, uint32_t number);
  // Withdraws what was offered. False: its message is under way. One that was put in place is in
  // the inbox, and found there.
  bool withdraw(Request* request);
  // Its message was put in place, and is handled now.
  void take_in_place(Request* request);

  // The sender counts from zero again, and ignores what was offered before.
  void begin_epoch(uint32_t epoch) { epoch_ = epoch; }

 private:
  Link& link_;
  Transfers& transfers_;
  uint32_t epoch_ = 0;
};

}  // namespace oh
