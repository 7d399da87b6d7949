// SPDX-License-Identifier: Apache-2.0
//
// Notifications: the notifications of all peers of an endpoint that the application has not
// collected, in the order of arrival.
//
// Threading: any thread.
#pragma once

#include <deque>
#include <utility>

#include "base/status.h"
#include "base/sync.h"
#include "base/wire.h"

namespace oh {

struct Notification {
  uint64_t peer_id = 0;
  int64_t peer_rank = -1;
  Bytes bytes;
};

class Notifications {
 public:
  void add(Notification notification) {
    MutexLock lock(mutex_);
    arrived_.push_back(std::move(notification));
  }
  bool empty() const {
    MutexLock lock(mutex_);
    return arrived_.empty();
  }
  // Takes the oldest notification; false if there is none. OH_ERR_RANGE: it is longer than
  // `capacity` and stays queued. Sets `size` in both cases.
  Result<bool> take(size_t capacity, Notification* notification, size_t* size) {
    MutexLock lock(mutex_);
    if (arrived_.empty()) return false;
    *size = arrived_.front().bytes.size();
    if (*size > capacity) {
      return error(OH_ERR_RANGE, "the notification has %zu bytes, there is room for %zu", *size,
                   capacity);
    }
    *notification = std::move(arrived_.front());
    arrived_.pop_front();
    return true;
  }

 private:
  mutable Mutex mutex_;
  std::deque<Notification> arrived_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
