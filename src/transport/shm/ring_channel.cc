// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/ring_channel.h"

namespace oh {

RingChannel::RingChannel(Segment& segment) : out_(segment.outgoing()), in_(segment.incoming()) {}

// The position of a payload of `size` bytes after `position` bytes of the payload ring are used:
// aligned to a cache line and contiguous. Both sides compute it.
uint64_t RingChannel::place_payload(uint64_t position, size_t size) {
  position = (position + 63) & ~uint64_t{63};
  uint64_t offset = position % kPayloadRing;
  return offset + size > kPayloadRing ? position + (kPayloadRing - offset) : position;
}

bool RingChannel::push(const Frame& frame) {
  if (frame.type == FrameType::kEager && frame.payload_size == frame.length &&
      frame.length <= kMaxShort) {
    return push_short(frame.tag, frame.payload, frame.payload_size);
  }
  return push_frame(frame);
}

// Pushes a short message with its payload in the payload ring.
bool RingChannel::push_beside(uint64_t tag, const uint8_t* data, size_t size) {
  Frame frame;
  frame.type = FrameType::kEager;
  frame.tag = tag;
  frame.length = frame.payload_size = size;
  frame.payload = data;
  return push_frame(frame);
}

bool RingChannel::push_frame(const Frame& frame) {
  uint64_t start = payload_next_;
  if (frame.payload_size) {
    start = place_payload(payload_next_, frame.payload_size);
    if (start + frame.payload_size - payload_freed_ > kPayloadRing) {
      // acquire: pairs with pop(); the consumer's reads of that payload are over.
      payload_freed_ = out_.consumer.payload.load(std::memory_order_acquire);
      if (start + frame.payload_size - payload_freed_ > kPayloadRing) return false;
    }
  }
  if (!has_cells(1)) return false;
  Cell& cell = out_.cells[next_ % kCells];
  cell.body = body_of(frame);
  cell.body.payload_position = static_cast<uint32_t>(start % kPayloadRing);
  if (frame.payload_size) {
    copy_bytes(out_.payload + start % kPayloadRing, frame.payload, frame.payload_size);
    payload_next_ = start + frame.payload_size;
  }
  publish(cell, 1, frame.type, frame.flags, 0);
  return true;
}

Status RingChannel::peek(Frame* frame) {
  uint64_t head = head_.load(std::memory_order_relaxed);
  Cell& cell = in_.cells[head % kCells];
  uint64_t word = cell.word.load(std::memory_order_acquire);  // pairs with publish()
  peeked_payload_head_ = payload_head_;
  peeked_cells_ = 1;
  *frame = Frame{};
  frame->type = word_type(word);
  if (word_flags(word) & kShort) {
    size_t size = word_short_size(word);
    if (!short_fits(size) || frame->type != FrameType::kEager) {
      return error(OH_ERR_PROTOCOL, "a cell of type %u claims a short message of %zu bytes",
                   static_cast<unsigned>(frame->type), size);
    }
    frame->tag = cell.message.tag;
    frame->length = frame->payload_size = size;
    frame->payload = payload_of(cell);
    peeked_cells_ = short_cells(size);
    return {};
  }
  if (frame->type == FrameType::kPad) {
    peeked_cells_ = kCells - head % kCells;
    return {};
  }
  // Copy the body before the checks: the peer may still write to the cell.
  FrameBody body = cell.body;
  if (!frame_from(word, body, frame) || body.payload_size > kMaxPayload) {
    return error(OH_ERR_PROTOCOL, "a cell has type %u and %u bytes of payload",
                 static_cast<unsigned>(frame->type), body.payload_size);
  }
  if (body.payload_size == 0) return {};
  uint64_t start = place_payload(payload_head_, body.payload_size);
  if (body.payload_position != start % kPayloadRing) {
    return error(OH_ERR_PROTOCOL, "a payload of %u bytes lies at %u instead of %llu",
                 body.payload_size, body.payload_position,
                 static_cast<unsigned long long>(start % kPayloadRing));
  }
  frame->payload = frame->ring = in_.payload + start % kPayloadRing;
  peeked_payload_head_ = start + body.payload_size;
  return {};
}

bool RingChannel::pop() {
  bool given = consume(peeked_cells_);
  payload_head_ = peeked_payload_head_;
  if (payload_head_ - payload_given_ < kPayloadRing / 8) return given;
  payload_given_ = payload_head_;
  // release: the reads of the payload are over; pairs with push_frame().
  in_.consumer.payload.store(payload_head_, std::memory_order_release);
  return true;
}

void RingChannel::return_credit(uint64_t bytes) {
  // relaxed: only the consumer writes it, and the producer tolerates a stale value.
  uint64_t given = in_.consumer.credit.load(std::memory_order_relaxed) + bytes;
  in_.consumer.credit.store(given, std::memory_order_relaxed);
}

}  // namespace oh
