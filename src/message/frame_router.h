// SPDX-License-Identifier: Apache-2.0
//
// FrameRouter: dispatches each received frame to the part of the link that handles it.
//
// Threading: guarded by the link's lock.
#pragma once

#include <utility>

#include "link/link.h"
#include "message/batch/message_batches.h"
#include "message/receiver.h"
#include "message/sender.h"
#include "one_sided/atomics.h"
#include "one_sided/one_sided.h"

namespace oh {

class FrameRouter {
 public:
  FrameRouter(Link& link, Sender& sender, Receiver& receiver, Matcher& matcher, OneSided& one_sided,
              Atomics& atomics, MessageBatches& batches)
      : link_(link),
        sender_(sender),
        receiver_(receiver),
        matcher_(matcher),
        one_sided_(one_sided),
        atomics_(atomics),
        batches_(batches) {}

  // An error: the peer violated the protocol.
  Status on_frame(const Frame& frame);
  // Takes the error that the peer has reported (nack) for a message whose send had succeeded.
  Status take_error() { return std::exchange(async_error_, Status()); }

 private:
  Link& link_;
  Sender& sender_;
  Receiver& receiver_;
  Matcher& matcher_;
  OneSided& one_sided_;
  Atomics& atomics_;
  MessageBatches& batches_;
  Status async_error_;
};

}  // namespace oh
