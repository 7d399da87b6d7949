// SPDX-License-Identifier: Apache-2.0
#include "message/unexpected.h"

#include "base/wire.h"
#include "link/tags.h"

namespace oh {

Unexpected* UnexpectedQueue::append(OfTag& queue, const Rts& message) {
  Unexpected* kept = pool_.acquire();
  static_cast<Rts&>(*kept) = message;
  kept->queue = &queue;
  kept->received = 0;
  queue.push_back(kept);
  if (is_user_tag(kept->tag)) of_users_.push_back(kept);
  ++size_;
  return kept;
}

Unexpected* UnexpectedQueue::keep(OfTag& queue, const Frame& eager) {
  Unexpected* message = append(queue, {.tag = eager.tag, .length = eager.length, .op = eager.op});
  message->announced = false;
  if (eager.length > sizeof(message->small)) message->large.reset(new uint8_t[eager.length]);
  eager.copy_payload(message->bytes(), eager.length);
  message->received = eager.payload_size;
  return message;
}

void UnexpectedQueue::keep(OfTag& queue, const Rts& rts) {
  Unexpected* message = append(queue, rts);
  message->announced = true;
  announced_.add(message, rts.op);
}

void UnexpectedQueue::drop(Unexpected* message) {
  message->queue->erase(message);
  if (is_user_tag(message->tag)) of_users_.erase(message);
  announced_.remove(message);
  offers_.remove(message);
  --size_;
  message->large.reset();
  pool_.release(message);
}

// A batch offer begins with the operation ID of the batch's receive.
void UnexpectedQueue::name_offer(Unexpected* message) {
  if (!is_offer_tag(message->tag) || message->length < sizeof(uint64_t)) return;
  Reader reader({message->bytes(), message->length});
  offers_.add(message, reader.u64());
}

void UnexpectedQueue::Names::add(Unexpected* message, uint64_t op) {
  const auto index = static_cast<uint32_t>(op);
  if (index >= kMaxOps) return;
  if (index >= messages_.size()) messages_.resize(index + 1, nullptr);
  message->op = op;
  messages_[index] = message;
}

Unexpected* UnexpectedQueue::Names::find(uint64_t op) const {
  const auto index = static_cast<uint32_t>(op);
  Unexpected* message = index < messages_.size() ? messages_[index] : nullptr;
  return message && message->op == op ? message : nullptr;
}

void UnexpectedQueue::Names::remove(const Unexpected* message) {
  const auto index = static_cast<uint32_t>(message->op);
  if (index < messages_.size() && messages_[index] == message) messages_[index] = nullptr;
}

}  // namespace oh
