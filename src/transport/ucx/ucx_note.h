// SPDX-License-Identifier: Apache-2.0
//
// A copy of a frame that UCX has, or may be given next. For ucx_channel.cc alone.
//
// Threading: guarded by the worker's lock.
#pragma once

#include "transport/ucx/ucx_channel.h"

namespace oh {

// Beside the types of frames: what channels say to each other before there are frames.
inline constexpr auto kUcxProbe = static_cast<FrameType>(0xf0);
inline constexpr auto kUcxProbeAnswer = static_cast<FrameType>(0xf1);
static_assert(FrameType::kLast < kUcxProbe);

struct UcxChannel::Note {
  Note(UcxChannel* owner, size_t room)
      : channel(owner), worker(owner->worker_.get()), bytes(new uint8_t[room]) {}
  uint8_t* head() { return bytes.get(); }

  UcxChannel* channel;  // null: gone before UCX was through
  UcxWorker* worker;
  bool flying = false;
  size_t size = 0;
  std::unique_ptr<uint8_t[]> bytes;    // header and small payload
  std::unique_ptr<uint8_t[]> payload;  // larger ones
};

}  // namespace oh
