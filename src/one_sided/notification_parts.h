// SPDX-License-Identifier: Apache-2.0
//
// NotificationParts: the notifications of one link as frames. A notification travels in parts, one
// frame each, in order and not interleaved with others. Notifications have a credit of their own,
// at least as large as that of messages. The credit of the first kept() bytes returns when the user
// collects the notification, that of later bytes on arrival: so a notification may be longer than
// the credit.
//
// Threading: guarded by the link's lock.
#pragma once

#include <algorithm>

#include "link/link.h"
#include "one_sided/notifications.h"
#include "path/path.h"

namespace oh {

class NotificationParts {
 public:
  static constexpr uint64_t kLongest = 64 << 20;

  NotificationParts(Link& link, Notifications& notifications)
      : link_(link), notifications_(notifications) {}

  // Pushes the remaining parts of the operation while there is room and credit. True when all are
  // pushed.
  bool push(Operation& operation);
  Status on_frame(const Frame& frame);
  // The peer returns credit.
  void add_credit(uint64_t charge) { charge_ -= std::min(charge_, charge); }
  // The local user has collected a notification of `bytes`: returns its credit.
  void collected(size_t bytes);
  // The link has ended.
  void clear() { arriving_.clear(); }

 private:
  static constexpr size_t kPart = 2048;
  static uint64_t charge_of(uint64_t bytes) { return std::max<uint64_t>(bytes, 64); }
  static uint64_t credit(const Limits& limits) {
    return std::max<uint64_t>(limits.eager_credit, 2 * kPart);
  }
  uint64_t kept() const { return credit(link_.mine) / 2 / kPart * kPart; }
  void return_credit(uint64_t charge);

  Link& link_;
  Notifications& notifications_;
  uint64_t charge_ = 0;         // credit that sent parts use, until the peer returns it
  uint64_t held_ = 0;           // credit that received parts hold, until it is returned
  Bytes arriving_;              // the bytes so far of the notification that is arriving
  uint64_t arriving_size_ = 0;  // its total size
};

}  // namespace oh
