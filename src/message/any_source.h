// SPDX-License-Identifier: Apache-2.0
//
// AnySource: receives that take a message from any peer of an endpoint, in post order.
//
// Order: a message matches the first posted receive that accepts it, and a receive gets the first
// of one peer's messages that it accepts. So an any-source receive never overtakes an unexpected
// message.
//
// The unexpected messages of a peer and this list have different locks. So a post has two steps:
// the receive enters the list, and then each peer offers its unexpected messages to it. In between
// any thread may post or receive at that peer. These rules keep the order:
// - Each receive that enters the list, posted or restored, gets the next era.
// - A peer stores the era up to which it has offered its unexpected messages
//   (Receiver::offer_unexpected).
// - A message that arrives matches only receives of that era or earlier, and a receive that is
//   posted at the peer is ordered after those. Both bring the peer up to date first.
// A thread that adds a receive to the list makes all peers offer to it afterwards, so no receive
// waits while a matching message is queued. models/any_source.pml checks all interleavings.
//
// Threading: its own lock, taken after a link's lock. The list's lock guards the fields of a
// receive while it is in the list; afterwards the lock of the peer that has taken it does.
#pragma once

#include <atomic>

#include "base/list.h"
#include "base/sync.h"
#include "link/request.h"

namespace oh {

class AnySource {
 public:
  // Era of the receive that entered the list last.
  uint64_t era() const { return era_.load(std::memory_order_relaxed); }

  // A receive was restored: the peers must offer their unexpected messages to it.
  void look_again() { look_again_.store(true); }
  bool take_look_again() { return look_again_.exchange(false); }

  // False: the endpoint was closed.
  bool post(Request* request) {
    SpinGuard guard(lock_);
    if (closed_) return false;
    request->phase = Phase::kPosted;
    request->order = {enter(request), 0};
    posted_.push_back(request);
    return true;
  }
  // Whether any receive in the list could take a message with `tag`.
  bool may_match(uint64_t tag) const {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    SpinGuard guard(lock_);
    return find(tag) != nullptr;
  }
  // Takes the first receive for `tag` that was posted before `limit` and entered the list in era
  // `offered` or earlier; it then belongs to `peer`.
  Request* take(uint64_t tag, const PostOrder* limit, uint64_t offered, Peer* peer) {
    if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
    SpinGuard guard(lock_);
    Request* request = posted_.front();
    while (request && !(takes(*request, tag) && request->entered <= offered)) {
      request = posted_.next(request);
    }
    if (!request || (limit && !request->order.before(*limit))) return nullptr;
    remove(request, peer);
    return request;
  }
  // Takes the first receive that entered the list after era `offered` and whose tag is `wanted`.
  template <typename Wanted>
  Request* take_new(uint64_t offered, Wanted wanted, Peer* peer) {
    SpinGuard guard(lock_);
    Request* request = posted_.front();
    while (request && !(request->entered > offered && wanted(request->tag))) {
      request = posted_.next(request);
    }
    if (request) remove(request, peer);
    return request;
  }
  // Puts a receive whose message was withdrawn back in its place.
  void restore(Request* request) {
    SpinGuard guard(lock_);
    request->phase = Phase::kPosted;
    request->peer = nullptr;
    enter(request);
    Request* later = nullptr;
    for (Request* other = posted_.back(); other && request->order.before(other->order);
         other = posted_.previous(other)) {
      later = other;
    }
    posted_.insert_before(later, request);
  }
  // Takes this receive, if it is in the list.
  bool take(Request* request) {
    SpinGuard guard(lock_);
    if (!static_cast<ListNode<InPosted>*>(request)->linked() || request->peer) return false;
    remove(request, nullptr);
    return true;
  }
  // The peer that has taken the receive, or nullptr.
  Peer* peer_of(const Request* request) const {
    SpinGuard guard(lock_);
    return request->peer;
  }
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // Removes all receives and calls `end` for each; post() fails from now on. The lock is held
  // throughout: a receive that is neither in the list nor with a peer has ended.
  template <typename End>
  void close(End end) {
    SpinGuard guard(lock_);
    closed_ = true;
    while (Request* request = posted_.front()) {
      remove(request, nullptr);
      end(request);
    }
  }

 private:
  static bool takes(const Request& request, uint64_t tag) {
    return request.tag == tag || request.tag == OH_ANY_TAG;
  }
  Request* find(uint64_t tag) const OH_REQUIRES(lock_) {
    for (Request* request = posted_.front(); request; request = posted_.next(request)) {
      if (takes(*request, tag)) return request;
    }
    return nullptr;
  }
  // Assigns the next era to a receive that enters the list.
  uint64_t enter(Request* request) OH_REQUIRES(lock_) {
    count_.fetch_add(1, std::memory_order_relaxed);
    request->entered = era_.fetch_add(1, std::memory_order_relaxed) + 1;
    return request->entered;
  }
  void remove(Request* request, Peer* peer) OH_REQUIRES(lock_) {
    posted_.erase(request);
    count_.fetch_sub(1, std::memory_order_relaxed);
    request->peer = peer;
  }

  mutable SpinLock lock_;
  List<Request, InPosted> posted_ OH_GUARDED_BY(lock_);
  bool closed_ OH_GUARDED_BY(lock_) = false;
  std::atomic<uint32_t> count_{0};
  std::atomic<bool> look_again_{false};
  // Written under the lock. Read without it: a reader with an old value does not offer to a new
  // receive, but the thread that put it into the list does, under each peer's lock.
  std::atomic<uint64_t> era_{0};
};

}  // namespace oh
