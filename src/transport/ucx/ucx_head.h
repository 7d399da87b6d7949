// SPDX-License-Identifier: Apache-2.0
//
// The header of an active message on a link over UCX:
//
//   link 4 | sequence 4 | key 4, type 1, flags 1, 2 | FrameBody 56      followed by a small
//   link 4 | sequence 4 | key 4, type 1, flags 1, 2 | tag 8             payload
//
// The second form is for a whole small message (kShort). Larger payloads are the data of the active
// message. UCX delivers in any order, so messages are numbered. The peers exchange the key on the
// control socket; a message with another key is dropped.
//
// Threading: values.
#pragma once

#include "transport/frame.h"

namespace oh {

struct UcxHead {
  uint32_t link;  // the receiver's number of the link
  uint32_t sequence;
  uint64_t word;  // cell_word() with the key as its sequence
};
static_assert(sizeof(UcxHead) == 16);

inline constexpr size_t kUcxBodySize = sizeof(UcxHead) + sizeof(FrameBody);
inline constexpr size_t kUcxShortSize = sizeof(UcxHead) + sizeof(uint64_t);

// Types of messages between channels, beside those of frames: the probe and its answer.
inline constexpr auto kUcxProbe = static_cast<FrameType>(0xf0);
inline constexpr auto kUcxProbeAnswer = static_cast<FrameType>(0xf1);
// Several frames in one message (ucx_packing.h).
inline constexpr auto kUcxPacked = static_cast<FrameType>(0xf2);
static_assert(FrameType::kLast < kUcxProbe);

}  // namespace oh
