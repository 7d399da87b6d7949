// SPDX-License-Identifier: Apache-2.0
//
// NotificationInbox: how the application collects the notifications of all peers. Collecting one
// returns its credit to its sender.
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

  // Where the links put them.
  Notifications& arrived() { return arrived_; }
  // As of Notifications, after some progress.
  Result<bool> take(size_t capacity, Notification* notification, size_t* size);
  // Until there is one. Another thread may take it first.
  Status wait(Deadline deadline);
  // Whether there is one; a failure says that none will come.
  Result<bool> is_ready() const;

 private:
  Endpoint& endpoint_;
  Notifications arrived_;
};

}  // namespace oh
