// SPDX-License-Identifier: Apache-2.0
//
// The header of an active message on a link over UCX:
//
//   link 4 | sequence 4 | key 4, type 1, flags 1, 2 | FrameBody 56      and then, if it is small,
//   link 4 | sequence 4 | key 4, type 1, flags 1, 2 | tag 8             the payload
//
// The second form is that of a small message (kShort). Other payloads are the message's data. UCX
// delivers in any order, so messages are numbered. The peers have told each other the key on the
// control socket; a message without it is dropped.
//
// Threading: values.
#pragma once

#include "transport/frame.h"

namespace oh {

struct UcxHead {
  uint32_t link;  // the receiver's number
  uint32_t sequence;
  uint64_t word;  // cell_word() with the key
};
static_assert(sizeof(UcxHead) == 16);

inline constexpr size_t kUcxBodySize = sizeof(UcxHead) + sizeof(FrameBody);
inline constexpr size_t kUcxShortSize = sizeof(UcxHead) + sizeof(uint64_t);

// Beside the types of frames: what channels say to each other before there are frames.
inline constexpr auto kUcxProbe = static_cast<FrameType>(0xf0);
inline constexpr auto kUcxProbeAnswer = static_cast<FrameType>(0xf1);
// And frames that travel together (ucx_packing.h).
inline constexpr auto kUcxPacked = static_cast<FrameType>(0xf2);
static_assert(FrameType::kLast < kUcxProbe);

}  // namespace oh
