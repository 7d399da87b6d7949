// SPDX-License-Identifier: Apache-2.0
//
// StagedCopy: a request whose bytes go through bounce buffers between device memory and the
// channel, as the link and the streams of messages see it. The staging pipeline derives its
// transfers from it (path/staging).
//
// Threading: guarded by the link's lock; while `busy` a thread of ours calls the driver for it
// without the lock.
#pragma once

#include <memory>

#include "base/status.h"
#include "device/copy_ticket.h"

namespace oh {

struct Request;
struct InFlight;

struct StagedCopy {
  Request* request = nullptr;  // null: it has ended, and the buffers are still in use
  uint64_t begun = 0;          // so many of its bytes have, or had, a buffer
  uint64_t there = 0;          // of a receive: so many have arrived
  bool busy = false;
  bool awaited = false;                 // of a receive: its sender is not ready
  bool withdrawn = false;               // the other side has ended it
  Status failure;                       // why it does not go on
  std::shared_ptr<InFlight> in_flight;  // the channel has a buffer, though the request has ended
  std::shared_ptr<cuda::Gpu> gpu;       // outlives the ticket
  CopyTicket ticket;                    // open while it has buffers

  bool has_stopped() const { return withdrawn || !failure.ok(); }
  bool copying() const { return !ticket.is_done(); }
  // Neither the engine nor a thread of ours accesses the request's memory.
  bool is_quiet() const { return !busy && !copying(); }
};

}  // namespace oh
