// SPDX-License-Identifier: Apache-2.0
//
// NotificationInbox: hands the notifications of all peers to the application. Taking a notification
// returns its credit to the sender.
//
// Threading: any thread.
#pragma once

#include "base/clock.h"
#include "one_sided/notifications.h"

namespace oh {

class Endpoint;

class NotificationInbox {
 public:
  explicit NotificationInbox(Endpoint& endpoint) : endpoint_(endpoint) {}

  // The queue into which the links deliver notifications.
  Notifications& arrived() { return arrived_; }
  // Makes progress, then behaves as Notifications::take().
  Result<bool> take(size_t capacity, Notification* notification, size_t* size);
  // Blocks until a notification is available. Another thread may take it first.
  Status wait(Deadline deadline);
  // Returns whether a notification is available; fails if none can arrive any more.
  Result<bool> is_ready() const;

 private:
  Endpoint& endpoint_;
  Notifications arrived_;
};

}  // namespace oh
