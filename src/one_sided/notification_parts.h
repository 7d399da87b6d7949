// SPDX-License-Identifier: Apache-2.0
//
// NotificationParts: the notifications of one link as frames. One travels in parts, each a frame,
// in order and without another between them. They have a credit of their own, as large as that of
// messages. What of one lies behind kept() gets its credit back when it arrives, so that a longer
// one than the credit gets through; the rest, when the user collects it.
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

  // Pushes what of the operation is left, as far as there is room and credit; true when all is.
  bool push(Operation& operation);
  Status on_frame(const Frame& frame);
  // The other side's user has collected so much.
  void add_credit(uint64_t charge) { charge_ -= std::min(charge_, charge); }
  // The local user has collected one of so many bytes.
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
  uint64_t charge_ = 0;         // of those that the other side's user has not collected
  uint64_t held_ = 0;           // of those that the local user has not collected
  Bytes arriving_;              // of the one that has not arrived as a whole
  uint64_t arriving_size_ = 0;  // of all of it
};

}  // namespace oh
