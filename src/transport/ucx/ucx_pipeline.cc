// SPDX-License-Identifier: Apache-2.0
//
// What is copied for UCX: small frames into a note, others into buffers of the worker's pool, those
// that follow each other at once into one.
#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/ucx/ucx_channel.h"
#include "transport/ucx/ucx_note.h"
#include "transport/ucx/ucx_packing.h"

namespace oh {
namespace {
// A part that is smaller goes into the next buffer.
constexpr size_t kLeastPart = 4096;
}  // namespace

bool UcxChannel::push(const Frame& frame) {
  const size_t room = worker_->pool().limits().packed;
  const size_t size = kPackedHead + frame.payload_size;
  // The buffer is ours: the peer's lock is enough.
  if (pack_.data && frame.more && pack_size_ + size <= room) {
    pack(frame);
    return true;
  }
  SpinGuard guard(worker_->lock);
  if (pack_.data && pack_size_ + size > room) send_pack();
  // As on a socket: that the link is gone is found out elsewhere.
  if (!endpoint_ || !why_broken_.empty()) return true;
  if (!pack_.data && (!frame.more || size > room)) return push_alone(frame);
  if (!pack_.data) {
    if (outstanding_ > kMostOutstanding || turn_left_ == 0) return defer();
    // One without bytes to speak of needs no buffer.
    if (!take_buffer(&pack_)) {
      return frame.payload_size <= max_inline_ ? push_alone(frame) : defer();
    }
    pack_size_ = 0;
  }
  pack(frame);
  if (!frame.more) send_pack();
  return true;
}

void UcxChannel::pack(const Frame& frame) {
  pack_size_ += pack_frame(pack_.data + pack_size_, frame);
  ++sent_;
  ++counts_.packed;
}

bool UcxChannel::push_alone(const Frame& frame) {
  const bool within = frame.payload_size <= max_inline_;
  const bool is_short =
      within && frame.type == FrameType::kEager && frame.payload_size == frame.length;
  if (outstanding_ > kMostOutstanding || (!within && turn_left_ == 0)) return defer();
  PooledBuffer buffer;
  if (!within && !take_buffer(&buffer)) return defer();
  Note* note = take_note();
  size_t header = write_head(note->head(), frame, is_short);
  size_t payload = 0;
  if (within) {
    if (frame.payload_size > 0) {
      std::memcpy(note->head() + header, frame.payload, frame.payload_size);
    }
    header += frame.payload_size;
  } else {
    std::memcpy(buffer.data, frame.payload, frame.payload_size);
    note->buffer = buffer;
    payload = frame.payload_size;
  }
  send_note(note, header, payload);
  return true;
}

void UcxChannel::send_pack() {
  if (!pack_.data || !endpoint_ || !why_broken_.empty()) return let_go_of_pack();
  Note* note = take_note();
  const UcxHead head = next_head(kUcxPacked, 0);
  std::memcpy(note->head(), &head, sizeof(head));
  note->buffer = std::exchange(pack_, {});
  send_note(note, sizeof(head), pack_size_);
}

void UcxChannel::let_go_of_pack() {
  if (!pack_.data) return;
  --buffers_;
  worker_->pool().give(std::exchange(pack_, {}));
  worker_->let_next_go_on();
}

// False: the window is full, or the pool is empty, or it is another channel's turn.
bool UcxChannel::take_buffer(PooledBuffer* buffer) {
  UcxPool& pool = worker_->pool();
  if (buffers_ >= pool.window()) return false;
  Result<PooledBuffer> taken = pool.take(this);
  if (!taken.ok()) {
    // Where some are on their way one of those comes back.
    if (pool.stats().in_use == 0) break_off("no memory to copy into: " + taken.status().text());
    return false;
  }
  asked_ = true;
  const bool waited = in_line_.exchange(!taken->data, std::memory_order_relaxed);
  if (!taken->data) return false;
  if (waited) worker_->let_next_go_on();
  *buffer = *taken;
  ++buffers_;
  if (turn_left_ != SIZE_MAX) --turn_left_;
  deferring_ = false;
  pool.grow_if_low();
  return true;
}

// There is no room now.
bool UcxChannel::defer() {
  if (turn_left_ > 0 && !std::exchange(deferring_, true)) ++counts_.deferred;
  return false;
}

void UcxChannel::begin_turn(size_t buffers) {
  SpinGuard guard(worker_->lock);
  turn_left_ = buffers;
  asked_ = false;
}

void UcxChannel::end_turn() {
  SpinGuard guard(worker_->lock);
  send_pack();
  turn_left_ = SIZE_MAX;
  if (!asked_) leave();
}

void UcxChannel::leave_line() {
  if (!in_line_.load(std::memory_order_relaxed)) return;
  SpinGuard guard(worker_->lock);
  leave();
}

void UcxChannel::leave() {
  if (!in_line_.exchange(false, std::memory_order_relaxed)) return;
  worker_->pool().forget(this);
  worker_->let_next_go_on();
}

size_t UcxChannel::part_of_list(uint64_t left) const {
  const size_t whole = worker_->pool().limits().packed - kPackedHead;
  const size_t used = pack_.data ? pack_size_ : 0;
  const size_t room = whole > used ? whole - used : 0;
  return std::min<uint64_t>(left, room >= std::min<uint64_t>(left, kLeastPart) ? room : whole);
}

}  // namespace oh
