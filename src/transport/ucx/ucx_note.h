// SPDX-License-Identifier: Apache-2.0
//
// A copy of frames that UCX has, or may be given next. For ucx_channel.cc and ucx_pipeline.cc
// alone.
//
// Threading: guarded by the worker's lock.
#pragma once

#include "transport/ucx/ucx_channel.h"

namespace oh {

// Beside the types of frames: what channels say to each other before there are frames.
inline constexpr auto kUcxProbe = static_cast<FrameType>(0xf0);
inline constexpr auto kUcxProbeAnswer = static_cast<FrameType>(0xf1);
// And frames that travel together (ucx_packing.h).
inline constexpr auto kUcxPacked = static_cast<FrameType>(0xf2);
static_assert(FrameType::kLast < kUcxProbe);

struct UcxChannel::Note {
  Note(UcxChannel* owner, size_t room)
      : channel(owner), worker(owner->worker_.get()), bytes(new uint8_t[room]) {}
  uint8_t* head() { return bytes.get(); }

  UcxChannel* channel;  // null: gone before UCX was through
  UcxWorker* worker;
  bool flying = false;
  size_t size = 0;
  std::unique_ptr<uint8_t[]> bytes;  // header and small payload
  PooledBuffer buffer;               // larger ones
};

}  // namespace oh
