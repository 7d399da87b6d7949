// SPDX-License-Identifier: Apache-2.0
//
// Completions: how the requests of one endpoint end. It owns their pool, the event descriptors that
// announce armed requests, and the count of operations whose end rings no doorbell.
//
// Requests that are armed for the list have a descriptor of their own: who waits for those and who
// waits for the others clear theirs without each other's knowledge.
//
// Threading: any thread.
#pragma once

#include <atomic>

#include "base/sync.h"
#include "link/request_pool.h"
#include "platform/os/handles.h"

namespace oh {

// A descriptor that is readable from the first announcement until clear().
class CompletionEvent {
 public:
  // Made by the first call.
  Result<int> fd();
  // An armed request has ended. Nothing happens while there is no descriptor.
  void announce();
  void clear();

 private:
  Mutex mutex_;
  UniqueFd event_ OH_GUARDED_BY(mutex_);
  std::atomic<int> number_{-1};  // the same, without the lock
};

class Completions {
 public:
  RequestPool& pool() { return pool_; }

  // Operations that end by a word which a device writes: while there are any, waits poll.
  const std::atomic<uint32_t>& polled() const { return polled_; }
  void count_polled(int change) { polled_.fetch_add(static_cast<uint32_t>(change)); }

  CompletionEvent& armed() { return armed_; }
  CompletionEvent& listed() { return listed_; }

 private:
  RequestPool pool_;
  std::atomic<uint32_t> polled_{0};
  CompletionEvent armed_;
  CompletionEvent listed_;
};

}  // namespace oh
