// SPDX-License-Identifier: Apache-2.0
//
// RequestPool: the requests of one endpoint. While any handle exists, the pool holds one reference
// to the endpoint for all of them, so that a handle needs no reference count of its own. Requests
// that are armed for the list stay in it from their end until an event loop takes them or they are
// released.
//
// Threading: any thread.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "base/list.h"
#include "base/pool.h"
#include "base/sync.h"
#include "link/request.h"

namespace oh {

class RequestPool {
 public:
  // Returns a request with a handle. `owner` derives from std::enable_shared_from_this.
  template <typename Owner>
  Request* acquire(Owner& owner) {
    Request* request = take(owner);
    request->renew();
    return request;
  }
  // Releases a request and its handle. Returns the owner if that was the last handle: dropping it
  // may destroy the owner, and the pool with it.
  [[nodiscard]] std::shared_ptr<void> release(Request* request) {
    clear(request);
    SpinGuard guard(lock_);
    pool_.release(request);
    return drop_handle();
  }
  // The same in two steps, for a request that continues without its handle.
  [[nodiscard]] std::shared_ptr<void> release_handle() {
    SpinGuard guard(lock_);
    return drop_handle();
  }
  void recycle(Request* request) {
    clear(request);
    SpinGuard guard(lock_);
    pool_.release(request);
  }

  // Must be called before the request is armed for the list.
  void expect(Request* request) {
    SpinGuard guard(lock_);
    request->to_list = true;
  }
  // Must be called before `done` is set: afterwards the caller may release the request. Both the
  // thread that arms it and the one that ends it may call; each expect() lists it once.
  void list_ended(Request* request) {
    SpinGuard guard(lock_);
    if (!std::exchange(request->to_list, false)) return;
    if (!static_cast<ListNode<InEnded>*>(request)->linked()) ended_.push_back(request);
  }
  // Takes as many as `taken` has room for, oldest first; returns how many.
  size_t take_ended(std::span<Request*> taken) {
    size_t count = 0;
    SpinGuard guard(lock_);
    for (Request* next = ended_.front(); next && count < taken.size();) {
      Request* request = std::exchange(next, ended_.next(next));
      if (!request->ended()) continue;  // it ends in a moment, and is announced then
      ended_.erase(request);
      taken[count++] = request;
    }
    return count;
  }

 private:
  void clear(Request* request) {
    if (request->armed.load(std::memory_order_relaxed) & Request::kList) {
      SpinGuard guard(lock_);
      request->to_list = false;
      if (static_cast<ListNode<InEnded>*>(request)->linked()) ended_.erase(request);
    }
    request->clear();
  }
  template <typename Owner>
  Request* take(Owner& owner) {
    SpinGuard guard(lock_);
    if (handles_++ == 0) owner_ = owner.shared_from_this();
    return pool_.acquire();
  }
  std::shared_ptr<void> drop_handle() OH_REQUIRES(lock_) {
    return --handles_ == 0 ? std::move(owner_) : nullptr;
  }

  SpinLock lock_;
  Pool<Request> pool_ OH_GUARDED_BY(lock_);
  List<Request, InEnded> ended_ OH_GUARDED_BY(lock_);
  std::shared_ptr<void> owner_ OH_GUARDED_BY(lock_);  // null while no handle exists
  size_t handles_ OH_GUARDED_BY(lock_) = 0;
};

}  // namespace oh
