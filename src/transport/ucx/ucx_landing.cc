// SPDX-License-Identifier: Apache-2.0
//
// Bytes of puts and gets that go from UCX's segment straight to where they belong, before their
// frames are handled: of puts into regions of which one was handled already, and in the order of
// their frames. A put whose bytes are in the inbox is handled before later ones are placed.
#include <cstring>

#include "transport/ucx/ucx_channel.h"

namespace oh {
namespace {
// Regions of one peer; puts into others take the way through the inbox.
constexpr size_t kMostShown = 64;
// The same of gets.
constexpr size_t kMostAwaited = 16;
}  // namespace

void UcxChannel::show(const Region& region) {
  SpinGuard guard(worker_->lock);
  if (all_forbidden_) return;
  for (const Region& other : shown_) {
    if (other.version == region.version) return;
  }
  if (shown_.size() == kMostShown) shown_.erase(shown_.begin());
  shown_.push_back(region);
}

void UcxChannel::hide(uint64_t version) {
  SpinGuard guard(worker_->lock);
  std::erase_if(shown_, [&](const Region& region) { return region.version == version; });
  if (landing_.version == version) landing_ = {};
}

void UcxChannel::forbid_all() {
  SpinGuard guard(worker_->lock);
  all_forbidden_ = true;
  places_.clear();
  expected_.for_each([](ExpectedTag& entry) { entry.messages.clear(); });
  shown_.clear();
  answers_.clear();
  landing_ = {};
}

void UcxChannel::await_answers(uint64_t op, const UcxSink* sink) {
  SpinGuard guard(worker_->lock);
  if (!all_forbidden_ && answers_.size() < kMostAwaited) answers_.emplace_back(op, sink);
}

void UcxChannel::take_back(uint64_t op) {
  SpinGuard guard(worker_->lock);
  std::erase_if(answers_, [op](const auto& one) { return one.first == op; });
}

// Called for each frame, in their order. True: its payload is where it belongs.
bool UcxChannel::land(Arrival* arrival, const void* data, size_t size) {
  const FrameType type = word_type(arrival->word);
  const uint8_t flags = word_flags(arrival->word);
  // Any other flag says that the payload is something else than the bytes.
  const bool put = type == FrameType::kPut && !(flags & ~kFlush);
  const bool part = type == FrameType::kData && flags == kOneSided;
  if (type == FrameType::kAbort && (flags & kOneSided)) landing_ = {};
  if (type == FrameType::kData && flags == (kOneSided | kReply)) {
    return data && land_answer(arrival->body, data, size);
  }
  if (!put && !part) return false;
  // acquire: pairs with pop(), by which they have been copied.
  if (data && passed_by_.load(std::memory_order_acquire) == 0 &&
      (put ? land_put(arrival->body, data, size) : land_part(arrival->body, data, size))) {
    return true;
  }
  landing_ = {};
  arrival->passed_by = true;
  passed_by_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

bool UcxChannel::land_put(const FrameBody& body, const void* data, size_t size) {
  for (const Region& region : shown_) {
    if (region.version != body.tag || region.index != body.region) continue;
    if (body.address > region.length || body.length > region.length - body.address ||
        size > body.length) {
      return false;
    }
    landing_ = {region.version, body.op, region.base + body.address, body.length, size};
    std::memcpy(landing_.to, data, size);
    return true;
  }
  return false;
}

bool UcxChannel::land_part(const FrameBody& body, const void* data, size_t size) {
  if (landing_.version == 0 || landing_.op != body.op || landing_.received != body.address ||
      size > landing_.length - landing_.received) {
    return false;
  }
  std::memcpy(landing_.to + landing_.received, data, size);
  landing_.received += size;
  return true;
}

bool UcxChannel::land_answer(const FrameBody& body, const void* data, size_t size) {
  for (const auto& [op, sink] : answers_) {
    if (op != body.op) continue;
    uint8_t* to = sink->place_of(body.number, body.address, size);
    if (to) std::memcpy(to, data, size);
    return to != nullptr;
  }
  return false;
}

}  // namespace oh
