// SPDX-License-Identifier: Apache-2.0
//
// ReadyToReceive (RTR): offers the buffer of a posted receive for the message with a given number.
// Over shared memory the sender gets an RTR frame with a transfer slot. Over UCX the offer stays on
// this side: its channel writes the message into the buffer.
//
// Threading: guarded by the link's lock.
#pragma once

#include "path/direct/transfers.h"

namespace oh {

class ReadyToReceive {
 public:
  ReadyToReceive(Link& link, Transfers& transfers) : link_(link), transfers_(transfers) {}

  // Whether an offer is of use for the receive. Not for wildcards.
  bool may_offer(const Request& request) const;
  // Offers the receive for message `number` of its tag. Does nothing without a free slot or room in
  // the channel.
  void offer(Request* request, uint32_t number);
  // Withdraws the offer. False: its message is in flight; one that was put in place is found in the
  // inbox.
  bool withdraw(Request* request);
  // Ends the offer of a receive whose message was put in place and is handled now.
  void take_in_place(Request* request);

  // The sender has restarted its numbers, and ignores earlier offers.
  void begin_epoch(uint32_t epoch) { epoch_ = epoch; }

 private:
  Link& link_;
  Transfers& transfers_;
  uint32_t epoch_ = 0;
};

}  // namespace oh
