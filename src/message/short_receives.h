// SPDX-License-Identifier: Apache-2.0
//
// ShortReceives: messages of one frame go from the ring straight into the receive that gets them,
// where no wildcard could take them. Receiver handles every other frame.
//
// Threading: guarded by the link's lock.
#pragma once

#include "message/matcher.h"

namespace oh {

class ShortReceives {
 public:
  ShortReceives(Link& link, Matcher& matcher) : link_(link), matcher_(matcher) {}

  struct Received {
    uint64_t size = 0;
    uint64_t tag = 0;
    oh_path path = OH_PATH_NONE;
  };
  // For a thread that spins with the lock held and posts nothing: whether the next message with
  // this tag can only be its own, and then that message, if it is the next frame, whole, and fits.
  TagRx* watch(uint64_t tag);
  bool take_next(TagRx& tag, uint8_t* data, size_t capacity, Received* received);
  // The same with one look for a receive that is being posted: true when that has ended it.
  bool take_now(Request* request);
  // Ends the receive that the next frame is for. False: the frame is still there.
  bool take_posted();

 private:
  Link& link_;
  Matcher& matcher_;
};

}  // namespace oh
