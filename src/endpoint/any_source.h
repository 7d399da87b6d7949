// SPDX-License-Identifier: Apache-2.0
//
// Receives that take a message from any peer of an endpoint. A message that arrives at a peer asks
// here, too; whichever receive was posted first gets it.
//
// Threading: own lock, taken inside of a peer's lock.
#pragma once

#include <atomic>

#include "base/list.h"
#include "base/sync.h"
#include "endpoint/request.h"

namespace oh {

class AnySource {
 public:
  // The order of a receive that is posted now at one peer.
  uint64_t era() const { return era_.load(std::memory_order_relaxed); }

  void post(Request* request) {
    SpinGuard guard(lock_);
    count_.fetch_add(1, std::memory_order_relaxed);
    request->order = {era_.fetch_add(1, std::memory_order_relaxed) + 1, 0};
    request->phase = Phase::kPosted;
    posted_.push_back(request);
  }
  // Whether any receive here could take a message with `tag`.
  bool may_match(uint64_t tag) const {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    SpinGuard guard(lock_);
    return find(tag) != nullptr;
  }
  // Takes the first receive for `tag` that was posted before `limit`; it belongs to `peer` then.
  Request* take(uint64_t tag, const PostOrder* limit, Peer* peer) {
    if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
    SpinGuard guard(lock_);
    Request* request = find(tag);
    if (!request || (limit && !request->order.before(*limit))) return nullptr;
    remove(request);
    request->peer = peer;
    return request;
  }
  // Puts a receive back to its place; its message was withdrawn.
  void restore(Request* request) {
    SpinGuard guard(lock_);
    count_.fetch_add(1, std::memory_order_relaxed);
    request->peer = nullptr;
    Request* later = nullptr;
    for (Request* other = posted_.back(); other && request->order.before(other->order);
         other = posted_.previous(other)) {
      later = other;
    }
    posted_.insert_before(later, request);
  }
  // Takes exactly this receive, unless a message was faster.
  bool take(Request* request) {
    SpinGuard guard(lock_);
    if (request->peer) return false;
    remove(request);
    return true;
  }
  // The peer whose message a receive got, or nullptr so far.
  Peer* peer_of(const Request* request) const {
    SpinGuard guard(lock_);
    return request->peer;
  }
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  Request* take_first() {
    SpinGuard guard(lock_);
    Request* request = posted_.front();
    if (request) remove(request);
    return request;
  }

 private:
  Request* find(uint64_t tag) const OH_REQUIRES(lock_) {
    for (Request* request = posted_.front(); request; request = posted_.next(request)) {
      if (request->tag == tag || request->tag == OH_ANY_TAG) return request;
    }
    return nullptr;
  }
  void remove(Request* request) OH_REQUIRES(lock_) {
    posted_.erase(request);
    count_.fetch_sub(1, std::memory_order_relaxed);
  }

  mutable SpinLock lock_;
  List<Request, InPosted> posted_ OH_GUARDED_BY(lock_);
  std::atomic<uint32_t> count_{0};
  std::atomic<uint64_t> era_{0};
};

}  // namespace oh
