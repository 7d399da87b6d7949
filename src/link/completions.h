// SPDX-License-Identifier: Apache-2.0
//
// Completions: how the requests of one endpoint end. It owns their pool, the event descriptor that
// announces armed requests, and the count of operations whose end rings no doorbell.
//
// Threading: any thread.
#pragma once

#include <atomic>

#include "base/sync.h"
#include "link/request_pool.h"
#include "platform/os/handles.h"

namespace oh {

class Completions {
 public:
  RequestPool& pool() { return pool_; }

  // Operations that end by a word which a device writes: while there are any, waits poll.
  const std::atomic<uint32_t>& polled() const { return polled_; }
  void count_polled(int change) { polled_.fetch_add(static_cast<uint32_t>(change)); }

  // Readable from the first announcement until clear_event(); made by the first call.
  Result<int> event_fd();
  // An armed request has ended. Nothing happens while there is no descriptor.
  void announce();
  void clear_event();

 private:
  RequestPool pool_;
  std::atomic<uint32_t> polled_{0};
  Mutex event_mutex_;
  UniqueFd event_ OH_GUARDED_BY(event_mutex_);
  std::atomic<int> event_number_{-1};  // the same, without the lock
};

}  // namespace oh
