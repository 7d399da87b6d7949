// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/ucx/ucx_packing.h"

namespace oh {
namespace {
// Payloads up to this size are copied rather than kept in UCX's buffers.
constexpr size_t kCopied = 1024;

UcxInbox::Outcome broken(std::string why) {
  return {.broken = Status(OH_ERR_PROTOCOL, std::move(why))};
}
}  // namespace

// ---- Arrivals -----------------------------------------------------------------------------------

UcxInbox::Outcome UcxInbox::arrive(const Message& message) {
  const UcxHead& head = message.head;
  const FrameType type = word_type(head.word);
  if (type == kUcxPacked) return arrive_packed(message);
  Arrival arrival;
  arrival.word = head.word;
  bool is_short = type == FrameType::kEager && (word_flags(head.word) & kShort) != 0;
  size_t size = message.size;
  size_t fixed = is_short ? sizeof(uint64_t) : sizeof(FrameBody);
  if (message.header.size() < fixed || (is_short && size > 0)) {
    return broken(strf("a header of %zu bytes makes no sense", message.header.size()));
  }
  std::memcpy(is_short ? static_cast<void*>(&arrival.body.tag) : &arrival.body,
              message.header.data(), fixed);
  ByteView payload = message.header.subspan(fixed);
  if (is_short) {
    arrival.body.length = arrival.body.payload_size = static_cast<uint32_t>(payload.size());
  }
  if (arrival.body.payload_size != payload.size() + size || (size > 0 && !payload.empty())) {
    return broken(strf("a frame with %u bytes came with %zu", arrival.body.payload_size,
                       payload.size() + size));
  }
  arrival.rendezvous = message.rendezvous;
  // A placed payload's frame is in the inbox before the worker's lock is released, so a thread that
  // revokes the receive finds it there.
  if (!arrival.rendezvous && size > 0) arrival.placed = place(message, arrival);
  if (head.sequence == next_sequence_ && !arrival.rendezvous && !arrival.placed) {
    ByteView bytes = size > 0 ? ByteView(static_cast<const uint8_t*>(message.data), size) : payload;
    if (land(&arrival, bytes.data(), bytes.size())) {
      arrival.placed = true;
      payload = {};
    }
  }
  if (arrival.placed) size = 0;
  if (arrival.rendezvous || (size > kCopied && message.may_keep)) {
    arrival.data = message.data;
  } else if (size > 0) {
    payload = {static_cast<const uint8_t*>(message.data), size};
  }
  return take_turn(head, arrival, payload);
}

UcxInbox::Outcome UcxInbox::arrive_packed(const Message& message) {
  ByteView frames(static_cast<const uint8_t*>(message.data), message.size);
  if (!message.header.empty() || message.rendezvous || !PackedFrames::are_whole(frames)) {
    return broken(strf("%zu bytes of packed frames make no sense", message.size));
  }
  Arrival arrival;
  arrival.word = message.head.word;
  return take_turn(message.head, arrival, frames);
}

// Writes a part, or an eager message in order, to its target. False: it has none.
bool UcxInbox::place(const Message& message, const Arrival& arrival) {
  const FrameType type = word_type(arrival.word);
  if (type == FrameType::kData && !(word_flags(arrival.word) & (kOneSided | kReply))) {
    return targets_.write_part(arrival.body, message.data, message.size);
  }
  return type == FrameType::kEager && message.head.sequence == next_sequence_ &&
         targets_.write_message(arrival.body, message.data, message.size);
}

UcxInbox::Outcome UcxInbox::take_turn(const UcxHead& head, const Arrival& arrival,
                                      ByteView payload) {
  if (head.sequence == next_sequence_) return deliver(arrival, payload);
  const bool kept = arrival.data && !arrival.rendezvous;
  const uint64_t size = kept ? arrival.body.payload_size : payload.size();
  // An honest peer exceeds none of these limits.
  if (stash_.size() >= kMostStashed || size > kMostBytesStashed - stashed_ ||
      stash_.contains(head.sequence) || head.sequence - next_sequence_ > kMostWaiting) {
    return broken(strf("message %u came while %u is awaited", head.sequence, next_sequence_));
  }
  stashed_ += size;
  stash_.emplace(head.sequence, Stashed{arrival, size, Bytes(payload.begin(), payload.end())});
  return {.keeps = arrival.data != nullptr, .broken = {}};
}

UcxInbox::Outcome UcxInbox::deliver(const Arrival& arrival, ByteView payload) {
  size_t count = 0;
  {
    SpinGuard guard(lock_);
    const size_t before = arrived_.arrivals.size();
    enter(arrival, payload);
    for (auto next = stash_.find(++next_sequence_); next != stash_.end();
         next = stash_.find(++next_sequence_)) {
      Stashed& stashed = next->second;
      if (word_type(stashed.arrival.word) != kUcxPacked) (void)land(&stashed.arrival, nullptr, 0);
      enter(stashed.arrival, stashed.bytes);
      stashed_ -= stashed.size;
      stash_.erase(next);
    }
    count = arrived_.arrivals.size();
    // release: pairs with ready().
    waiting_.fetch_add(count - before, std::memory_order_release);
  }
  Outcome outcome{.keeps = arrival.data != nullptr, .ready = true, .broken = {}};
  if (count > kMostWaiting) {
    outcome.broken = Status(OH_ERR_PROTOCOL, "it sends and takes no answers");
  }
  return outcome;
}

bool UcxInbox::land(Arrival* arrival, const void* data, size_t size) {
  return targets_.write_in_order(arrival->word, arrival->body, data, size, &arrival->waits);
}

void UcxInbox::enter(Arrival arrival, ByteView payload) {
  if (word_type(arrival.word) == kUcxPacked) return enter_pack(payload);
  arrival.offset = arrived_.bytes.size();
  arrived_.bytes.append(payload);
  arrived_.arrivals.push_back(arrival);
}

void UcxInbox::enter_pack(ByteView bytes) {
  PackedFrames frames(bytes);
  Arrival arrival;
  ByteView payload;
  while (frames.next(&arrival.word, &arrival.body, &payload)) {
    arrival.waits = false;
    arrival.placed = land(&arrival, payload.data(), payload.size());
    enter(arrival, arrival.placed ? ByteView() : payload);
  }
}

std::vector<void*> UcxInbox::take_stashed() {
  std::vector<void*> kept;
  for (auto& [sequence, stashed] : stash_) {
    if (stashed.arrival.data) kept.push_back(stashed.arrival.data);
  }
  stash_.clear();
  stashed_ = 0;
  return kept;
}

void UcxInbox::Payloads::append(ByteView bytes) {
  if (bytes.size() > room_ - size_) {
    size_t room = std::max(2 * room_, size_ + bytes.size());
    std::unique_ptr<uint8_t[]> larger(new uint8_t[room]);
    if (size_ > 0) std::memcpy(larger.get(), bytes_.get(), size_);
    bytes_ = std::move(larger);
    room_ = room;
  }
  if (!bytes.empty()) std::memcpy(bytes_.get() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
}

// ---- The peer's side ----------------------------------------------------------------------------

Status UcxInbox::peek(Frame* frame) {
  if (position_ == batch_.arrivals.size()) {
    batch_.arrivals.clear();
    batch_.bytes.clear();
    position_ = 0;
    SpinGuard guard(lock_);
    std::swap(batch_, arrived_);
  }
  const Arrival& arrival = batch_.arrivals[position_];
  if (!frame_from(arrival.word, arrival.body, frame)) {
    return error(OH_ERR_PROTOCOL, "a frame of type %u",
                 static_cast<unsigned>(word_type(arrival.word)));
  }
  frame->remote = arrival.rendezvous;
  frame->placed = arrival.placed;
  frame->payload = arrival.rendezvous || arrival.placed ? nullptr
                   : arrival.data                       ? static_cast<const uint8_t*>(arrival.data)
                                                        : batch_.bytes.at(arrival.offset);
  return {};
}

void* UcxInbox::pop() {
  Arrival& arrival = batch_.arrivals[position_++];
  ++taken_;
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  if (arrival.waits) targets_.put_handled();
  return std::exchange(arrival.data, nullptr);
}

void* UcxInbox::take_data() { return std::exchange(batch_.arrivals[position_].data, nullptr); }

}  // namespace oh
