// SPDX-License-Identifier: Apache-2.0
//
// The target's side of one-sided operations that travel as messages, and progress of both.
#include <algorithm>

#include "one_sided/one_sided.h"

namespace oh {
namespace {
constexpr size_t kMaxServing = 1 << 20;
}  // namespace

bool OneSided::push_all() {
  turn_ = {};
  // In turn, or whoever begins would have all the room that there is.
  const bool answers_first = answers_first_;
  const bool answered = answers_first && push_answers();
  const bool pushed = push_queue();
  if (answers_first ? answered : pushed) answers_first_ = !answers_first;
  bool any = answered || pushed;
  // What waited for the end of a put is next.
  while (progress_rma()) {
    (void)push_queue();
    any = true;
  }
  return (!answers_first && push_answers()) || any;
}

// Of the other side's gets.
bool OneSided::push_answers() {
  bool any = false;
  while (!serving_.empty() && pair_.outbox.empty()) {
    uint64_t before = serving_.front().sent;
    bool all = serve(serving_.front());
    any = any || all || before != serving_.front().sent;
    if (!all) break;
    serving_.pop_front();
  }
  return any;
}

void OneSided::acknowledge(uint64_t op, oh_status status) {
  Frame frame;
  frame.type = FrameType::kAck;
  frame.op = op;
  frame.aux = static_cast<uint32_t>(status);
  pair_.send(frame);
}

Status OneSided::on_put(const Frame& frame) {
  if (frame.flags & kBySlot) return on_block(frame, /*put=*/true);
  if (frame.flags & kCrossing) return on_run(frame, /*put=*/true);
  if (arriving_.received < arriving_.length || frame.payload_size > frame.length) {
    return error(OH_ERR_PROTOCOL, "%s began a put inside of another", pair_.name.c_str());
  }
  oh_status before = arriving_.op == frame.op ? arriving_.status : OH_OK;
  arriving_ = Arriving{};
  arriving_.op = frame.op;
  arriving_.position = frame.address;
  arriving_.length = frame.length;
  arriving_.flush = (frame.flags & kFlush) != 0;
  arriving_.status = before;
  // Its region was valid when it was placed, and all of it is there.
  if (frame.placed && frame.payload_size == frame.length) return place(frame);
  arriving_.region = host_.find_region(frame.region, frame.tag);
  if (!arriving_.region) {
    arriving_.status = OH_ERR_RETIRED;
  } else if (arriving_.region->exported && frame.length > 0) {
    arriving_.status = OH_ERR_NOT_VIABLE;  // only engines touch it
    arriving_.region.reset();
  } else if (!slice_fits(frame.address, frame.length, arriving_.region->length)) {
    arriving_.status = OH_ERR_RANGE;
    arriving_.region.reset();
  } else if (pair_.ucx && !frame.placed) {
    const RegionRecord& region = *arriving_.region;
    pair_.ucx->show({region.index, region.version, region.base, region.length});
  }
  return place(frame);
}

Status OneSided::on_data(const Frame& frame) {
  if (frame.op != arriving_.op || frame.address != arriving_.received ||
      frame.payload_size > arriving_.length - arriving_.received) {
    return error(OH_ERR_PROTOCOL, "%s sent %zu bytes of a put that is not under way",
                 pair_.name.c_str(), frame.payload_size);
  }
  return place(frame);
}

// The next bytes of the put that is arriving.
Status OneSided::place(const Frame& frame) {
  if (arriving_.region && !frame.placed) {
    frame.copy_payload(arriving_.region->base + arriving_.position + arriving_.received,
                       arriving_.length);
  }
  arriving_.received += frame.payload_size;
  if (arriving_.received < arriving_.length) return {};
  arriving_.region.reset();
  if (arriving_.flush) acknowledge(arriving_.op, arriving_.status);
  return {};
}

// The rest of the put that is arriving will not come.
void OneSided::on_abort(const Frame& frame) {
  if (frame.op != arriving_.op) return;
  arriving_.region.reset();
  arriving_.received = arriving_.length;
}

Status OneSided::on_get(const Frame& frame) {
  if (frame.flags & kBySlot) return on_block(frame, /*put=*/false);
  if (frame.flags & kCrossing) return on_run(frame, /*put=*/false);
  if (serving_.size() >= kMaxServing) {
    return error(OH_ERR_PROTOCOL, "%s asked for %zu blocks at once", pair_.name.c_str(),
                 serving_.size());
  }
  std::shared_ptr<RegionRecord> region = host_.find_region(frame.region, frame.tag);
  if (!region) {
    acknowledge(frame.op, OH_ERR_RETIRED);
  } else if (region->exported) {
    acknowledge(frame.op, OH_ERR_NOT_VIABLE);
  } else if (!slice_fits(frame.address, frame.length, region->length)) {
    acknowledge(frame.op, OH_ERR_RANGE);
  } else {
    serving_.push_back({frame.op, frame.number, std::move(region), frame.address, frame.length, 0});
  }
  return {};
}

// Pushes some of the answer; true when all of it is on the wire.
bool OneSided::serve(Serving& serving) {
  for (size_t i = 0; i < frames_at_once() && serving.sent < serving.length; ++i) {
    Frame frame;
    frame.type = FrameType::kData;
    frame.flags = kOneSided | kReply;
    frame.op = serving.op;
    frame.number = static_cast<uint32_t>(serving.block);
    frame.address = serving.sent;
    frame.payload = serving.region->base + serving.position + serving.sent;
    const uint64_t left = serving.length - serving.sent;
    frame.payload_size = part_of(serving.length, left);
    frame.more = frame.payload_size < left || serving_.size() > 1;
    if (!pair_.push(frame)) return false;
    serving.sent += frame.payload_size;
  }
  return serving.sent == serving.length;
}

void OneSided::retire(const RegionRecord& region) {
  if (pair_.ucx) pair_.ucx->hide(region.version);
  keys_.retire(region);
  if (arriving_.region.get() == &region) {
    arriving_.region.reset();
    arriving_.status = OH_ERR_RETIRED;
  }
  std::erase_if(serving_, [&](const Serving& serving) {
    if (serving.region.get() != &region) return false;
    acknowledge(serving.op, OH_ERR_RETIRED);
    return true;
  });
}

Status OneSided::on_notify(const Frame& frame) {
  uint64_t charge = notification_charge(frame.length);
  if (frame.payload_size != frame.length || frame.length > kMaxNotification ||
      notifications_held_ + charge > notification_credit(pair_.mine)) {
    return error(OH_ERR_PROTOCOL,
                 "%s sent a notification of %llu bytes, %llu are not collected yet",
                 pair_.name.c_str(), static_cast<unsigned long long>(frame.length),
                 static_cast<unsigned long long>(notifications_held_));
  }
  notifications_held_ += charge;
  Notification notification;
  notification.peer_id = pair_.id;
  notification.peer_rank = pair_.rank;
  notification.bytes.assign(frame.payload, frame.payload + frame.payload_size);
  pair_.wake_me = true;
  host_.notified(std::move(notification));
  return {};
}

void OneSided::give_back(size_t bytes) {
  Frame frame;
  frame.type = FrameType::kAck;
  frame.length = notification_charge(bytes);
  notifications_held_ -= frame.length;
  pair_.send(frame);
}

Status OneSided::on_signal(const Frame& frame) {
  if (frame.slot >= kSignals) {
    return error(OH_ERR_PROTOCOL, "%s signalled slot %u", pair_.name.c_str(), frame.slot);
  }
  signals_by_message_[frame.slot] += frame.length;
  pair_.wake_me = true;
  return {};
}

uint64_t OneSided::signals_waiting(uint32_t slot) const {
  uint64_t came = signals_by_message_[slot];
  // acquire: what was put before the signal is visible to who takes it.
  if (pair_.segment) {
    came += pair_.segment->incoming().signals[slot].load(std::memory_order_acquire);
  }
  return came - signals_taken_[slot];
}

bool OneSided::take_signals(uint32_t slot, uint64_t count) {
  if (signals_waiting(slot) < count) return false;
  signals_taken_[slot] += count;
  return true;
}

}  // namespace oh
