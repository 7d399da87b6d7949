// SPDX-License-Identifier: Apache-2.0
//
// StagingTransfer: a message between device memory and a link without shared memory, chunk by chunk
// through pinned bounce buffers. StagingPipeline makes its progress.
//
// Threading: guarded by the link's lock; while `busy` a thread of ours calls the driver for it
// without the lock.
#pragma once

#include <deque>
#include <list>
#include <memory>

#include "base/status.h"
#include "device/batches.h"
#include "device/copy_ticket.h"
#include "memory/staging_pool.h"

namespace oh {

struct Request;
struct InFlight;

struct StagingTransfer {
  // Bytes [begin, begin + size) of the message.
  struct Chunk {
    uint64_t begin;
    uint64_t size;
    PooledBuffer buffer;
    uint64_t value = 0;  // that the word has once they are copied; 0: the engine has not got them
    std::unique_ptr<BatchBuffer> list = {};  // of its blocks, which a kernel reads
  };

  using List = std::list<std::shared_ptr<StagingTransfer>>;

  StagingDirection direction = StagingDirection::kOut;
  Request* request = nullptr;  // null: it has ended, and the buffers are still in use
  uint64_t op = 0;             // the sender's name of a message that comes
  uint64_t length = 0;
  uint64_t begun = 0;   // so many of its bytes have, or had, a buffer
  uint64_t there = 0;   // of one that comes: so many are here
  uint64_t copied = 0;  // so many has the engine copied
  std::deque<Chunk> chunks;
  std::shared_ptr<cuda::Gpu> gpu;  // outlives the ticket
  CopyTicket ticket;               // open while it has buffers
  List::iterator at;               // where it is listed
  bool holds = false;              // among those with buffers
  bool counted = false;            // among what is polled for
  bool busy = false;
  bool awaited = false;                 // of one that comes: its sender is not ready
  bool withdrawn = false;               // the other side is through with it
  Status failure;                       // why it does not go on
  std::shared_ptr<InFlight> in_flight;  // the channel has a buffer, though the request has ended

  bool copying() const { return !ticket.is_done(); }
  // Neither the engine nor a thread of ours is at the request's memory.
  bool is_quiet() const { return !busy && !copying(); }
};

}  // namespace oh
