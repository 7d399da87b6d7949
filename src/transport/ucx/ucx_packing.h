// SPDX-License-Identifier: Apache-2.0
//
// Frames that travel together: one behind the other in the data of one active message.
//
//   | 0 4, type 1, flags 1, 0 2 | FrameBody 56 | payload |  | ... | ... | payload |  ...
//
// Threading: values.
#pragma once

#include "base/wire.h"
#include "transport/frame.h"

namespace oh {

inline constexpr size_t kPackedHead = sizeof(uint64_t) + sizeof(FrameBody);

// Writes head and payload to `to`, which has room for them. How many bytes those are.
size_t pack_frame(uint8_t* to, const Frame& frame);

// Takes such a message apart. What it says may be anything; next() stays within `bytes`.
class PackedFrames {
 public:
  explicit PackedFrames(ByteView bytes) : left_(bytes) {}

  // False at the end, and where the rest makes no sense.
  bool next(uint64_t* word, FrameBody* body, ByteView* payload);
  bool at_end() const { return left_.empty(); }

  // Whether all of it is frames, and there is one.
  static bool are_whole(ByteView bytes);

 private:
  ByteView left_;
};

}  // namespace oh
