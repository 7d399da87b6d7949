// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_packing.h"

#include <cstring>

namespace oh {

size_t pack_frame(uint8_t* to, const Frame& frame) {
  const uint64_t word = cell_word(0, frame.type, frame.flags, 0);
  const FrameBody body = body_of(frame);
  std::memcpy(to, &word, sizeof(word));
  std::memcpy(to + sizeof(word), &body, sizeof(body));
  if (frame.payload_size > 0) {
    std::memcpy(to + kPackedHead, frame.payload, frame.payload_size);
  }
  return kPackedHead + frame.payload_size;
}

bool PackedFrames::next(uint64_t* word, FrameBody* body, ByteView* payload) {
  if (left_.size() < kPackedHead) return false;
  std::memcpy(word, left_.data(), sizeof(*word));
  std::memcpy(body, left_.data() + sizeof(*word), sizeof(*body));
  const FrameType type = word_type(*word);
  if (type == FrameType::kNone || type > FrameType::kLast) return false;
  if (body->payload_size > left_.size() - kPackedHead) return false;
  *payload = left_.subspan(kPackedHead, body->payload_size);
  left_ = left_.subspan(kPackedHead + body->payload_size);
  return true;
}

bool PackedFrames::are_whole(ByteView bytes) {
  PackedFrames frames(bytes);
  uint64_t word = 0;
  FrameBody body;
  ByteView payload;
  bool any = false;
  while (frames.next(&word, &body, &payload)) any = true;
  return any && frames.at_end();
}

}  // namespace oh
