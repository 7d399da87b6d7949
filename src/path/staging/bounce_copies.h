// SPDX-License-Identifier: Apache-2.0
//
// BounceCopies: messages that the CPU received as frames (inline, eager, streamed) for receives
// whose buffer is on a device. They wait in a bounce buffer until earlier work on the receive's
// buffer is done; then the engine copies them to the device.
//
// Threading: guarded by the link's lock; driver calls are made without it.
#pragma once

#include <list>

#include "device/copy_ticket.h"
#include "link/link.h"

namespace oh {

class BounceCopies {
 public:
  explicit BounceCopies(Link& link) : link_(link) {}

  // Where the channel places a message of `length` bytes: the bounce buffer, or host memory
  // directly.
  static uint8_t* place(Request& request, uint64_t length);
  // Called when all bytes have arrived and the request's result is set. The request completes once
  // they are copied.
  void add(Request* request);
  bool progress() OH_NO_THREAD_ANALYSIS;
  bool empty() const { return copies_.empty(); }
  // Completes a request whose copy has not begun. False: it has begun, or the request is not here.
  bool cancel(Request* request, const Status& status);
  // Called when this side closes the link: ends copies that have not begun. False while a thread or
  // the device still works on one.
  bool fail_all(const Status& status);

 private:
  struct BounceCopy {
    Request* request;
    CopyTicket ticket = {};  // open while the device copies
    Status failure = {};     // set if only part of the copy was enqueued
    bool busy = false;       // a thread uses it without the lock
  };
  bool has_work(const BounceCopy& copy) const;
  // Each returns whether something happened; all but end_copied() release the lock.
  bool step(BounceCopy& copy) OH_NO_THREAD_ANALYSIS;
  bool start(BounceCopy& copy) OH_NO_THREAD_ANALYSIS;
  bool check(BounceCopy& copy) OH_NO_THREAD_ANALYSIS;
  bool ask_producer(BounceCopy& copy) OH_NO_THREAD_ANALYSIS;
  bool end_copied(BounceCopy& copy);
  void end(BounceCopy& copy, Status status);

  Link& link_;
  std::list<BounceCopy> copies_;
};

}  // namespace oh
