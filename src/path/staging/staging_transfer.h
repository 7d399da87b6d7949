// SPDX-License-Identifier: Apache-2.0
//
// StagingTransfer: one message of a staging pipeline, chunk by chunk through pinned bounce buffers.
//
//   |<-- given back -->|<------------- chunks ------------->|<-- no buffer yet -->|
//   0                                                     begun               length
//
// A sender's chunk is copied into its buffer, then sent; a receiver's arrives, then is copied out.
//
// Threading: guarded by the link's lock.
#pragma once

#include <algorithm>
#include <deque>
#include <list>
#include <memory>

#include "base/wire.h"
#include "device/batches.h"
#include "link/request.h"
#include "link/staged_copy.h"
#include "memory/staging_pool.h"

namespace oh {

struct StagingTransfer final : StagedCopy {
  // Bytes [begin, end()) of the message.
  struct Chunk {
    uint64_t begin;
    uint64_t size;
    PooledBuffer buffer;
    uint64_t value = 0;                      // of the ticket's word once copied; 0: not enqueued
    std::unique_ptr<BatchBuffer> list = {};  // of its blocks, for the kernel
    uint64_t end() const { return begin + size; }
  };
  using List = std::list<std::shared_ptr<StagingTransfer>>;
  // What a transfer can do next.
  enum class Step { kNothing, kCopy, kCheck, kAskProducer, kTake };

  // `most`: the limit of chunks with a buffer.
  Step next_step(size_t most);
  // The first chunk whose copy is not enqueued. Null: none, or its bytes have not arrived.
  Chunk* next_copy();
  // The size of the next chunk, in a buffer of `buffer_size` bytes.
  uint64_t next_size(uint64_t buffer_size) const;
  // Updates `copied`. True when the engine has copied more since the last call.
  bool update_copied();
  // Of a send: bytes from `from` on, up to `limit`, that can be sent now. Empty while the engine
  // copies them.
  ByteView filled(uint64_t from, uint64_t limit) const;
  // Of a receive: where `size` bytes at `offset` belong; null if they were not granted.
  uint8_t* place(uint64_t offset, uint64_t size) const;
  // Of a receive: whether all bytes have arrived, so that it completes even if the link is lost.
  bool is_whole() const;

  bool receives() const { return direction == StagingDirection::kIn; }

  StagingDirection direction = StagingDirection::kOut;
  uint64_t op = 0;  // the sender's operation
  uint64_t length = 0;
  uint64_t copied = 0;  // bytes that the engine has copied
  std::deque<Chunk> chunks;
  List::iterator at;     // its place in its list
  bool holds = false;    // it is in the list of those with buffers
  bool counted = false;  // in Link::count_polled()

 private:
  // The byte up to which buffers may be taken.
  uint64_t may_begin() const { return receives() ? length : std::min(length, request->granted); }
};

}  // namespace oh
