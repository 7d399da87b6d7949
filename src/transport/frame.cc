// SPDX-License-Identifier: Apache-2.0
#include "transport/frame.h"

namespace oh {

FrameBody body_of(const Frame& frame) {
  return FrameBody{.tag = frame.tag,
                   .length = frame.length,
                   .op = frame.op,
                   .address = frame.address,
                   .slot = frame.slot,
                   .number = frame.number,
                   .region = frame.region,
                   .aux = frame.aux,
                   .payload_position = 0,
                   .payload_size = static_cast<uint32_t>(frame.payload_size)};
}

bool frame_from(uint64_t word, const FrameBody& body, Frame* frame) {
  frame->type = word_type(word);
  if (frame->type == FrameType::kNone || frame->type > FrameType::kLast) return false;
  frame->flags = word_flags(word);
  frame->tag = body.tag;
  frame->length = body.length;
  frame->op = body.op;
  frame->address = body.address;
  frame->slot = body.slot;
  frame->number = body.number;
  frame->region = body.region;
  frame->aux = body.aux;
  frame->payload = frame->ring = nullptr;
  frame->payload_size = body.payload_size;
  return true;
}

}  // namespace oh
