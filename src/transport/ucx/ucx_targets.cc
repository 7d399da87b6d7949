// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_targets.h"

#include <algorithm>
#include <cstring>

namespace oh {
namespace {
bool is_before(const UcxTargets::Message& message, uint32_t number) {
  return static_cast<int32_t>(message.number - number) < 0;
}
}  // namespace

// ---- Post and revoke ----------------------------------------------------------------------------

void UcxTargets::post(uint64_t op, uint8_t* to, uint64_t begin, uint64_t size) {
  SpinGuard guard(lock_);
  if (!all_revoked_) parts_.push_back({op, to, begin, size});
}

void UcxTargets::revoke(uint64_t op, std::optional<uint64_t> begin) {
  SpinGuard guard(lock_);
  std::erase_if(
      parts_, [&](const Part& part) { return part.op == op && (!begin || part.begin == *begin); });
}

std::deque<UcxTargets::Message>::iterator UcxTargets::Tag::find(uint32_t number) {
  auto found = std::lower_bound(messages.begin(), messages.end(), number, is_before);
  return found != messages.end() && found->number == number ? found : messages.end();
}

bool UcxTargets::post_message(uint64_t tag, const Message& message) {
  SpinGuard guard(lock_);
  if (all_revoked_) return false;
  if (tags_.size() >= tidy_at_) {
    tags_.drop_idle();
    tidy_at_ = std::max(kTidyAt, 2 * tags_.size());
  }
  std::deque<Message>& messages = tags_.get(tag).messages;
  auto place = std::lower_bound(messages.begin(), messages.end(), message.number, is_before);
  // A number identifies one target for revoke_message().
  if (place != messages.end() && place->number == message.number) return false;
  messages.insert(place, message);
  return true;
}

bool UcxTargets::revoke_message(uint64_t tag, uint32_t number, bool taken) {
  SpinGuard guard(lock_);
  Tag* entry = tags_.find(tag);
  if (!entry) return true;
  auto message = entry->find(number);
  if (message == entry->messages.end()) return true;
  if (message->has_come && !taken) return false;
  entry->messages.erase(message);
  return true;
}

void UcxTargets::post_region(const Region& region) {
  SpinGuard guard(lock_);
  if (all_revoked_) return;
  for (const Region& other : regions_) {
    if (other.version == region.version) return;
  }
  if (regions_.size() == kMostRegions) regions_.erase(regions_.begin());
  regions_.push_back(region);
}

void UcxTargets::revoke_region(uint64_t version) {
  SpinGuard guard(lock_);
  std::erase_if(regions_, [&](const Region& region) { return region.version == version; });
  if (put_.version == version) put_ = {};
}

void UcxTargets::post_answers(uint64_t op, const UcxSink* sink) {
  SpinGuard guard(lock_);
  if (!all_revoked_ && answers_.size() < kMostGets) answers_.emplace_back(op, sink);
}

void UcxTargets::revoke_answers(uint64_t op) {
  SpinGuard guard(lock_);
  std::erase_if(answers_, [op](const auto& one) { return one.first == op; });
}

void UcxTargets::revoke_all() {
  SpinGuard guard(lock_);
  all_revoked_ = true;
  parts_.clear();
  tags_.for_each([](Tag& entry) { entry.messages.clear(); });
  regions_.clear();
  answers_.clear();
  put_ = {};
}

// ---- Arrivals -----------------------------------------------------------------------------------

bool UcxTargets::write_part(const FrameBody& body, const void* data, size_t size) {
  for (const Part& part : parts_) {
    if (part.op != body.op || body.address < part.begin) continue;
    const uint64_t offset = body.address - part.begin;
    if (offset > part.size || size > part.size - offset) continue;
    std::memcpy(part.to + offset, data, size);
    return true;
  }
  return false;
}

// False: no target is posted for the message, or it does not fit.
bool UcxTargets::write_message(const FrameBody& body, const void* data, size_t size) {
  Tag* entry = tags_.find(body.tag);
  if (!entry) return false;
  auto message = entry->find(body.number);
  if (message == entry->messages.end() || message->has_come || message->epoch != body.aux ||
      body.length > message->capacity || size > body.length) {
    return false;
  }
  std::memcpy(message->to, data, size);
  message->has_come = true;
  if (size < body.length) parts_.push_back({body.op, message->to, 0, body.length});
  return true;
}

bool UcxTargets::write_in_order(uint64_t word, const FrameBody& body, const void* data, size_t size,
                                bool* waits) {
  const FrameType type = word_type(word);
  const uint8_t flags = word_flags(word);
  // With any other flag the payload is not the bytes of the put.
  const bool put = type == FrameType::kPut && !(flags & ~kFlush);
  const bool rest = type == FrameType::kData && flags == kOneSided;
  if (type == FrameType::kAbort && (flags & kOneSided)) put_ = {};
  if (type == FrameType::kData && flags == (kOneSided | kReply)) {
    return data && write_answer(body, data, size);
  }
  if (!put && !rest) return false;
  // acquire: pairs with put_handled(): earlier puts have been copied.
  if (data && waiting_.load(std::memory_order_acquire) == 0 &&
      (put ? write_put(body, data, size) : write_rest_of_put(body, data, size))) {
    return true;
  }
  put_ = {};
  *waits = true;
  waiting_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

bool UcxTargets::write_put(const FrameBody& body, const void* data, size_t size) {
  for (const Region& region : regions_) {
    if (region.version != body.tag || region.index != body.region) continue;
    if (body.address > region.length || body.length > region.length - body.address ||
        size > body.length) {
      return false;
    }
    put_ = {region.version, body.op, region.base + body.address, body.length, size};
    std::memcpy(put_.to, data, size);
    return true;
  }
  return false;
}

bool UcxTargets::write_rest_of_put(const FrameBody& body, const void* data, size_t size) {
  if (put_.version == 0 || put_.op != body.op || put_.received != body.address ||
      size > put_.length - put_.received) {
    return false;
  }
  std::memcpy(put_.to + put_.received, data, size);
  put_.received += size;
  return true;
}

bool UcxTargets::write_answer(const FrameBody& body, const void* data, size_t size) {
  for (const auto& [op, sink] : answers_) {
    if (op != body.op) continue;
    uint8_t* to = sink->place_of(body.number, body.address, size);
    if (to) std::memcpy(to, data, size);
    return to != nullptr;
  }
  return false;
}

}  // namespace oh
