// SPDX-License-Identifier: Apache-2.0
//
// ShortReceives: copies messages of one frame from the ring straight into their receive, while no
// wildcard is posted. Receiver handles every other frame.
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
  // For a thread that spins with the lock held and posts nothing. watch() returns the tag if its
  // next message can only be for this thread, else null. take_next() takes that message, if it is
  // the next frame, whole, and fits.
  TagRx* watch(uint64_t tag);
  bool take_next(TagRx& tag, uint8_t* data, size_t capacity, Received* received);
  // The same, checking once, for a receive that is being posted. True: it has ended.
  bool take_now(Request* request);
  // Ends the posted receive that the next frame matches. False: the frame stays in the ring.
  bool take_posted();

 private:
  Link& link_;
  Matcher& matcher_;
};

}  // namespace oh
