// SPDX-License-Identifier: Apache-2.0
//
// Completions: the ends of the requests of one endpoint. It owns their pool, the event descriptors
// that announce armed requests, and the count of operations whose end rings no doorbell.
//
// Requests armed for the list have a descriptor of their own, so that the two kinds of waiters
// clear their descriptors independently.
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
  // The first call creates the descriptor.
  Result<int> fd();
  // Announces that an armed request has ended. Does nothing before the first fd().
  void announce();
  void clear();

 private:
  Mutex mutex_;
  UniqueFd event_ OH_GUARDED_BY(mutex_);
  std::atomic<int> number_{-1};  // the descriptor, read without the mutex
};

class Completions {
 public:
  RequestPool& pool() { return pool_; }

  // Number of operations whose end rings no doorbell, such as those that a device ends by writing a
  // word. Waits poll while it is not 0.
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
