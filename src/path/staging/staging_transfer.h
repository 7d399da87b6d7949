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
    uint64_t value = 0;  // that the ticket's word has once they are copied; 0: not enqueued
    std::unique_ptr<BatchBuffer> list = {};  // of its blocks, which a kernel reads
    uint64_t end() const { return begin + size; }
  };
  using List = std::list<std::shared_ptr<StagingTransfer>>;
  // What it can do next.
  enum class Step { kNothing, kCopy, kCheck, kAskProducer, kTake };

  // `most`: chunks at once.
  Step next_step(size_t most);
  // The first chunk that the engine has not got, null: none, or its bytes have not arrived.
  Chunk* next_copy();
  // The size of the next chunk, in a buffer of so many bytes.
  uint64_t next_size(uint64_t buffer_size) const;
  // Whether the engine has copied more since the last call.
  bool update_copied();
  // Of a send: what of the bytes from `from` on can be sent, at most to `limit`; none while the
  // engine copies them.
  ByteView filled(uint64_t from, uint64_t limit) const;
  // Of a receive: where `size` bytes at `offset` go, null if they were not asked for.
  uint8_t* place(uint64_t offset, uint64_t size) const;
  // Of a receive: all bytes have arrived, and end it though the link is lost.
  bool is_whole() const;

  bool receives() const { return direction == StagingDirection::kIn; }

  StagingDirection direction = StagingDirection::kOut;
  uint64_t op = 0;  // the sender's name of a message that comes
  uint64_t length = 0;
  uint64_t copied = 0;  // so many has the engine copied
  std::deque<Chunk> chunks;
  List::iterator at;     // where it is listed
  bool holds = false;    // among those with buffers
  bool counted = false;  // among what is polled for

 private:
  // Up to which byte buffers may be taken.
  uint64_t may_begin() const { return receives() ? length : std::min(length, request->granted); }
};

}  // namespace oh
