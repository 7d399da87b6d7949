// SPDX-License-Identifier: Apache-2.0
//
// StagedCopy: the state of a request whose bytes go through bounce buffers between device memory
// and the channel, as far as the link and the message streams need it. The staging pipeline derives
// its transfers from it (path/staging).
//
// Threading: guarded by the link's lock; while `busy` a local thread calls the driver for it
// without the lock.
#pragma once

#include <memory>

#include "base/status.h"
#include "device/copy_ticket.h"

namespace oh {

struct Request;
struct InFlight;

struct StagedCopy {
  Request* request = nullptr;  // null: it has ended, but the buffers are still in use
  uint64_t begun = 0;          // bytes that have, or had, a buffer
  uint64_t there = 0;          // of a receive: bytes that have arrived
  bool busy = false;
  bool awaited = false;                 // of a receive: its sender is not ready
  bool withdrawn = false;               // the peer has ended it, or needs no abort
  Status failure;                       // why it has stopped
  std::shared_ptr<InFlight> in_flight;  // with a bounce buffer of an ended request
  std::shared_ptr<cuda::Gpu> gpu;       // outlives the ticket
  CopyTicket ticket;                    // open while it has buffers

  bool has_stopped() const { return withdrawn || !failure.ok(); }
  bool copying() const { return !ticket.is_done(); }
  // Neither the copy engine nor a local thread accesses the request's memory.
  bool is_quiet() const { return !busy && !copying(); }
};

}  // namespace oh
