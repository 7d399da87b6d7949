// SPDX-License-Identifier: Apache-2.0
//
// Readiness: requests that end as soon as something can be taken: a signal, a notification, a
// message, a connected peer. They take nothing themselves, so cancelling one loses nothing.
//
// Threading: any thread. Its own lock is taken before a link's lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "link/request.h"

namespace oh {

class Readiness {
 public:
  // Whether it can be taken. An error ends the request: what it waits for will not arrive.
  using Look = std::function<Result<bool>()>;
  struct Ended {
    Request* request;
    Status status;
  };

  // `what`: for error texts. False: the endpoint was closed.
  bool add(Request* request, std::string what, Look look) {
    MutexLock lock(mutex_);
    if (closed_) return false;
    waiting_.push_back({request, std::move(what), std::move(look)});
    count_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // Removes and returns the requests whose wait is over.
  std::vector<Ended> remove_ready() {
    std::vector<Ended> ready;
    MutexLock lock(mutex_);
    std::erase_if(waiting_, [&](Entry& entry) {
      Result<bool> there = entry.look();
      if (there.ok() && !*there) return false;
      ready.push_back({entry.request, there.status()});
      return true;
    });
    count_.store(static_cast<uint32_t>(waiting_.size()), std::memory_order_relaxed);
    return ready;
  }
  // False: it has been removed already.
  bool remove(Request* request) {
    MutexLock lock(mutex_);
    bool found =
        std::erase_if(waiting_, [&](const Entry& entry) { return entry.request == request; }) > 0;
    count_.store(static_cast<uint32_t>(waiting_.size()), std::memory_order_relaxed);
    return found;
  }
  // Removes and returns all requests; add() fails from now on.
  std::vector<Request*> close() {
    std::vector<Request*> all;
    MutexLock lock(mutex_);
    closed_ = true;
    all.reserve(waiting_.size());
    for (Entry& entry : waiting_) all.push_back(entry.request);
    waiting_.clear();
    count_.store(0, std::memory_order_relaxed);
    return all;
  }
  std::string what(const Request* request) const {
    MutexLock lock(mutex_);
    for (const Entry& entry : waiting_) {
      if (entry.request == request) return entry.what;
    }
    return "what came meanwhile";
  }

 private:
  struct Entry {
    Request* request;
    std::string what;
    Look look;
  };

  mutable Mutex mutex_;
  std::vector<Entry> waiting_ OH_GUARDED_BY(mutex_);
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  std::atomic<uint32_t> count_{0};
};

}  // namespace oh
