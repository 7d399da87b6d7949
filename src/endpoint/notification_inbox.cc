// SPDX-License-Identifier: Apache-2.0
#include "endpoint/notification_inbox.h"

#include "endpoint/endpoint.h"

namespace oh {

Result<bool> NotificationInbox::take(size_t capacity, Notification* notification, size_t* size) {
  endpoint_.progress();
  std::shared_ptr<const Endpoint::Peers> all = endpoint_.peers();
  OH_ASSIGN_OR_RETURN(bool taken, arrived_.take(capacity, notification, size));
  if (!taken) {
    // Another thread may hold a link's lock, with a notification on its way. The signal that
    // follows it is seen without the lock.
    for (const auto& peer : *all) peer->operations().progress(nullptr);
    OH_ASSIGN_OR_RETURN(taken, arrived_.take(capacity, notification, size));
  }
  if (!taken) return false;
  for (const auto& peer : *all) {
    if (peer->link().id != notification->peer_id) continue;
    peer->operations().one_sided().notification_collected(notification->bytes.size());
  }
  return true;
}

Result<bool> NotificationInbox::is_ready() const {
  if (!arrived_.empty()) return true;
  if (!endpoint_.is_usable()) return error(OH_ERR_CLOSED, "the endpoint was closed");
  return false;
}

Status NotificationInbox::wait(Deadline deadline) {
  Result<bool> there = false;
  auto came = [&] {
    there = is_ready();
    return !there.ok() || *there;
  };
  if (!endpoint_.requests().wait_for(came, nullptr, WaitKind::kNothing, 0, deadline)) {
    return timed_out(deadline.length(), "no notification came from %s. %s",
                     peers_text(endpoint_).c_str(), kIfOnlyLate);
  }
  return there.status();
}

}  // namespace oh
