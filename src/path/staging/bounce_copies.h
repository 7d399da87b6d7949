// SPDX-License-Identifier: Apache-2.0
//
// BounceCopies: messages that the CPU received as frames (inline, eager, streamed) for receives
// whose buffer is on a device. They wait in a bounce buffer until earlier work on the receive's
// buffer is done; then the engine copies them to the device.
//
// Threading: guarded by the link's lock, but for calls to the driver, which are made without it.
#pragma once

#include <list>

#include "device/copy_ticket.h"
#include "link/link.h"

namespace oh {

class BounceCopies {
 public:
  explicit BounceCopies(Link& link) : link_(link) {}

  // Where the bytes of a message of `length` go: into the bounce buffer, or to host memory
  // directly.
  static uint8_t* place(Request& request, uint64_t length);
  // All bytes have arrived. The request's result is filled in; it ends once they are copied.
  void add(Request* request);
  bool progress() OH_NO_THREAD_ANALYSIS;
  bool empty() const { return copies_.empty(); }
  // Ends a request whose copy has not begun; false when it is not here or has begun.
  bool cancel(Request* request, const Status& status);
  // When the link is closed from here: ends those that have not begun. False while the device still
  // copies one.
  bool fail_all(const Status& status);

 private:
  struct BounceCopy {
    Request* request;
    CopyTicket ticket = {};  // open: the device copies
    Status failure = {};     // only some of the copy was enqueued
    bool busy = false;       // a thread works on it
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
