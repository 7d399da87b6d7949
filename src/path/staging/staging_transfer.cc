// SPDX-License-Identifier: Apache-2.0
#include "path/staging/staging_transfer.h"

#include <algorithm>

namespace oh {

StagingTransfer::Step StagingTransfer::next_step(size_t most) {
  if (busy) return Step::kNothing;
  if (ticket.is_late()) return Step::kCheck;
  if (!request || has_stopped()) return Step::kNothing;
  if (next_copy()) return Step::kCopy;
  if (request->device.after.pending()) return Step::kAskProducer;
  const bool more = begun < may_begin() && !awaited;
  return more && chunks.size() < most ? Step::kTake : Step::kNothing;
}

// Chunks are copied in order: the next copy is enqueued while the one before it runs.
StagingTransfer::Chunk* StagingTransfer::next_copy() {
  auto next = std::ranges::find(chunks, uint64_t{0}, &Chunk::value);
  if (next == chunks.end() || (receives() && next->end() > there)) return nullptr;
  return &*next;
}

// A send's chunks end where the receiver's buffers do (`border`).
uint64_t StagingTransfer::next_size(uint64_t buffer_size) const {
  const uint64_t size = std::min(buffer_size, may_begin() - begun);
  const uint64_t border = request->border;
  return border ? std::min(size, border - begun % border) : size;
}

bool StagingTransfer::update_copied() {
  if (chunks.empty() || !ticket.is_open()) return false;
  const uint64_t seen = ticket.seen();
  const uint64_t before = copied;
  for (const Chunk& chunk : chunks) {
    if (chunk.value == 0 || chunk.value > seen) break;
    copied = std::max(copied, chunk.end());
  }
  return copied != before;
}

ByteView StagingTransfer::filled(uint64_t from, uint64_t limit) const {
  if (chunks.empty()) return {};
  const Chunk& chunk = chunks.front();
  if (from < chunk.begin || chunk.end() > copied) return {};
  const uint64_t end = std::min(chunk.end(), limit);
  if (end <= from) return {};
  return {chunk.buffer.data + (from - chunk.begin), end - from};
}

uint8_t* StagingTransfer::place(uint64_t offset, uint64_t size) const {
  for (const Chunk& chunk : chunks) {
    if (offset < chunk.begin || offset >= chunk.end()) continue;
    if (chunk.value != 0 || size > chunk.end() - offset) return nullptr;
    return chunk.buffer.data + (offset - chunk.begin);
  }
  return nullptr;
}

// A message that arrived before the link was lost is still delivered. Runs are not: no initiator
// would learn of a put, and a get needs all of its blocks.
bool StagingTransfer::is_whole() const {
  const bool is_run = request && request->is_run();
  return receives() && there == length && !has_stopped() && !is_run;
}

}  // namespace oh
