// SPDX-License-Identifier: Apache-2.0
#include "one_sided/notification_parts.h"

#include <utility>

namespace oh {

bool NotificationParts::push(Operation& operation) {
  do {
    Frame frame;
    frame.type = FrameType::kNotify;
    frame.length = operation.bytes.size();
    frame.address = operation.offset;
    frame.payload = operation.bytes.data() + operation.offset;
    frame.payload_size = std::min(kPart, operation.bytes.size() - operation.offset);
    const uint64_t charge = charge_of(frame.payload_size);
    if (charge_ + charge > credit(link_.theirs) || !link_.push(frame)) return false;
    charge_ += charge;
    operation.offset += frame.payload_size;
  } while (operation.offset < operation.bytes.size());
  return true;
}

Status NotificationParts::on_frame(const Frame& frame) {
  const uint64_t charge = charge_of(frame.payload_size);
  const bool fits = frame.length <= kLongest && frame.address == arriving_.size() &&
                    slice_fits(frame.address, frame.payload_size, frame.length) &&
                    (frame.address == 0 || frame.length == arriving_size_) &&
                    (frame.payload_size > 0 || frame.length == 0);
  if (!fits || held_ + charge > credit(link_.mine)) {
    return error(OH_ERR_PROTOCOL,
                 "%s sent bytes %llu to %llu of a notification of %llu bytes, behind %zu bytes of "
                 "one of %llu; %llu bytes are not collected yet",
                 link_.name.c_str(), static_cast<unsigned long long>(frame.address),
                 static_cast<unsigned long long>(frame.address + frame.payload_size),
                 static_cast<unsigned long long>(frame.length), arriving_.size(),
                 static_cast<unsigned long long>(arriving_size_),
                 static_cast<unsigned long long>(held_));
  }
  held_ += charge;
  arriving_size_ = frame.length;
  arriving_.insert(arriving_.end(), frame.payload, frame.payload + frame.payload_size);
  if (frame.address >= kept()) return_credit(charge);
  if (arriving_.size() < arriving_size_) return {};
  Notification notification;
  notification.peer_id = link_.id;
  notification.peer_rank = link_.rank;
  notification.bytes = std::exchange(arriving_, {});
  link_.wake_me = true;
  notifications_.add(std::move(notification));
  return {};
}

void NotificationParts::collected(size_t bytes) {
  const uint64_t parts = std::min<uint64_t>(bytes, kept());
  const uint64_t rest = parts % kPart;
  const bool short_part = rest > 0 || parts == 0;
  return_credit(parts - rest + (short_part ? charge_of(rest) : 0));
}

void NotificationParts::return_credit(uint64_t charge) {
  Frame frame;
  frame.type = FrameType::kAck;
  frame.length = charge;
  held_ -= charge;
  link_.send(frame);
}

}  // namespace oh
