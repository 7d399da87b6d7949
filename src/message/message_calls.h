// SPDX-License-Identifier: Apache-2.0
//
// MessageCalls: the calls of two-sided messages: send, receive, probe.
//
// Threading: any thread; the link's lock is taken inside.
#pragma once

#include <optional>

#include "link/link.h"
#include "message/receiver.h"
#include "message/sender.h"
#include "message/short_receives.h"
#include "path/message_selection.h"

namespace oh {

class MessageCalls {
 public:
  struct Parts {
    Transfers& transfers;
    Matcher& matcher;
    ShortReceives& short_receives;
    Sender& sender;
    Receiver& receiver;
  };
  MessageCalls(Link& link, const Parts& parts)
      : link_(link),
        transfers_(parts.transfers),
        matcher_(parts.matcher),
        short_receives_(parts.short_receives),
        sender_(parts.sender),
        receiver_(parts.receiver) {}

  // Posts an operation; progress ends the request. OH_AGAIN: too many sends are pending. After any
  // error nothing was posted.
  Status post_send(Request* request);
  Status post_recv(Request* request);
  // The fast path of small messages, without a request. False: it is not available now. recv_now()
  // spins briefly for the message.
  bool send_now(const uint8_t* data, size_t size, uint64_t tag);
  // The same with a request, which it ends.
  bool send_now(Request* request, const uint8_t* data, size_t size, uint64_t tag) {
    if (!send_now(data, size, tag)) return false;
    link_.finish_posted(*request, link_.selection->framed_path(size, /*eager=*/true), tag, size);
    return true;
  }
  bool recv_now(uint8_t* data, size_t capacity, uint64_t tag, ShortReceives::Received* received);

  // The message that a receive with this tag would get at once.
  std::optional<Receiver::Announced> probe(uint64_t tag);
  // Offers unexpected messages to any-source receives.
  void offer_unexpected();
  // Drops unexpected messages with an internal tag.
  void discard(uint64_t tag);

 private:
  Status ask_producer(Request& request) OH_NO_THREAD_ANALYSIS;

  Link& link_;
  Transfers& transfers_;
  Matcher& matcher_;
  ShortReceives& short_receives_;
  Sender& sender_;
  Receiver& receiver_;
};

}  // namespace oh
