// SPDX-License-Identifier: Apache-2.0
//
// Packed frames: several frames, one behind the other, in the data of one active message.
//
//   | 0 4, type 1, flags 1, 0 2 | FrameBody 56 | payload |  | ... | ... | payload |  ...
//
// Threading: values.
#pragma once

#include "base/wire.h"
#include "transport/frame.h"

namespace oh {

inline constexpr size_t kPackedHead = sizeof(uint64_t) + sizeof(FrameBody);

// Writes the frame's head and payload to `to`, which must have room. Returns their size.
size_t pack_frame(uint8_t* to, const Frame& frame);

// Iterates over packed frames. The bytes are untrusted; next() stays within them.
class PackedFrames {
 public:
  explicit PackedFrames(ByteView bytes) : left_(bytes) {}

  // The next frame. False at the end, or if the rest is malformed.
  bool next(uint64_t* word, FrameBody* body, ByteView* payload);
  bool at_end() const { return left_.empty(); }

  // Whether `bytes` consist of one or more well-formed frames.
  static bool are_whole(ByteView bytes);

 private:
  ByteView left_;
};

}  // namespace oh
