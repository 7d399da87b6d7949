// SPDX-License-Identifier: Apache-2.0
//
// Receives that take a message from any peer of an endpoint, in the order in which they were
// posted.
//
// Order: a message goes to the first posted of the receives that take it, and a receive gets, of
// each peer, the first of the messages that it takes. So an any-source receive never overtakes an
// unexpected message.
//
// A peer's unexpected messages and this list have different locks. So a post has two steps: the
// receive enters the list, and then each peer offers it what is unexpected there. In between any
// thread may post or receive at that peer. What keeps the order:
//   - Each receive that enters the list, posted or given back, gets the next era.
//   - A peer remembers up to which era it has offered what is unexpected
//   (Receiver::offer_unexpected).
//   - A message that arrives is given to receives of that era or before only, and a receive that is
//     posted at the peer comes behind those. Both bring the peer up to date first.
// A thread that adds a receive to the list has all peers offer to it afterwards, so none waits
// beside a message that it could have. models/any_source.pml has all interleavings.
//
// Threading: own lock, taken inside of a peer's lock. The fields of a receive are guarded by
// the list's lock while it is in the list, and by the lock of the peer that has taken it
// afterwards.
#pragma once

#include <atomic>

#include "base/list.h"
#include "base/sync.h"
#include "link/request.h"

namespace oh {

class AnySource {
 public:
  // Of the receive that entered the list last.
  uint64_t era() const { return era_.load(std::memory_order_relaxed); }

  // A receive was given back: the peers have to offer it what is unexpected.
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
  // Whether any receive here could take a message with `tag`.
  bool may_match(uint64_t tag) const {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    SpinGuard guard(lock_);
    return find(tag) != nullptr;
  }
  // Takes the first receive for `tag` that was posted before `limit` and entered the list in era
  // `offered` or before; it belongs to `peer` then.
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
  // Puts a receive back to its place; its message was withdrawn.
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
  // Takes exactly this receive, if it is here.
  bool take(Request* request) {
    SpinGuard guard(lock_);
    if (!static_cast<ListNode<InPosted>*>(request)->linked() || request->peer) return false;
    remove(request, nullptr);
    return true;
  }
  // The peer whose message a receive got, or nullptr so far.
  Peer* peer_of(const Request* request) const {
    SpinGuard guard(lock_);
    return request->peer;
  }
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // Calls `end` for each receive in the list; no more are posted. With the lock held: a receive
  // that is neither here nor with a peer has ended.
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
  // The era of a receive that is about to be in the list.
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
  // Written under the lock. Read without it: with an old value the receive is not offered
  // here, but by the thread that put it into the list, under each peer's lock.
  std::atomic<uint64_t> era_{0};
};

}  // namespace oh
