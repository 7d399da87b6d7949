// SPDX-License-Identifier: Apache-2.0
//
// Transfers through the relay: the source fills lines of the outgoing pipe, the sink drains them in
// order; several are under way at once. Where a side's buffer is on a device its engine copies, and
// the device writes the line's word behind the copy.
//
//   source: take a chunk, take a line, copy, word = full        sink: copy, word = drained, count
#include <algorithm>

#include "base/clock.h"
#include "base/copy.h"
#include "base/fault.h"
#include "endpoint/transfers.h"

namespace oh {

// Whether the next line of the outgoing pipe is free.
bool Transfers::can_fill() {
  PipeLine& line = pair_.segment->outgoing_pipe().lines[pipe_filled_ % kPipeLines];
  // acquire: the consumer's reads of the buffer are over.
  return line.word.load(std::memory_order_acquire) == pipe_free(pipe_filled_);
}

bool Transfers::fill(Transfer& transfer) {
  uint64_t offset;
  uint64_t size;
  if (!take_chunk(transfer, /*from_back=*/false, &offset, &size)) return false;
  uint64_t position = pipe_filled_++;
  PipeLayout& pipe = pair_.segment->outgoing_pipe();
  PipeLine& line = pipe.lines[position % kPipeLines];
  uint8_t* buffer = transfer.mode == CopyMode::kStaged
                        ? transfer.mapped + position % kPipeLines * kSlabChunk
                        : pipe.buffers[position % kPipeLines];
  line.offset = offset;
  line.bytes = size;
  line.slot = transfer.index;
  line.sequence = transfer.sequence;
  line.from_owner = transfer.owner;
  bool by_engine = transfer.local_device;
  ++transfer.copiers;
  pair_.lock.unlock();
  OH_FAULT_POINT("transfer.copy");
  Status status;
  if (by_engine) {
    status = enqueue_line(/*fills=*/true, position, buffer, transfer.local + offset, size);
  } else {
    copy_bytes(buffer, transfer.local + offset, size);
  }
  pair_.lock.lock();
  --transfer.copiers;
  transfer.looked = now_ns();
  if (!status.ok()) {
    // The line is taken: it goes on its way without bytes, and nobody else will count the chunk.
    line.bytes = 0;
    fail(transfer, status);
    stop(&transfer, status.code());
    account(transfer, 1);
  }
  if (by_engine && status.ok()) {
    filling_.push_back({&transfer, position});
    ++transfer.lines;
  } else {
    // release: the bytes and the line's fields; pairs with drain().
    line.word.store(pipe_full(position), std::memory_order_release);
    pair_.wake_them = true;
  }
  return true;
}

// The transfer that a line belongs to, if we are its sink and it has not ended.
Transfer* Transfers::sink_of(const PipeLine& line) {
  if (line.slot >= kSlots) return nullptr;
  // Owned by the producer of the line: in their half.
  SegmentDirection& half = line.from_owner ? pair_.segment->incoming() : pair_.segment->outgoing();
  const TransferSlot* slot = &half.slots[line.slot];
  auto is_it = [&](const Transfer* transfer) {
    return transfer->slot == slot && transfer->sequence == line.sequence && !transfer->source &&
           transfer->owner != (line.from_owner != 0);
  };
  // A claim may come to light only now.
  for (Transfer* posted = posted_.front(); posted; posted = posted_.next(posted)) {
    if (!is_it(posted)) continue;
    if (!claimed(posted)) return nullptr;
    break;
  }
  for (Transfer* transfer = active_.front(); transfer; transfer = active_.next(transfer)) {
    if (!is_it(transfer)) continue;
    learn(*transfer);  // the source may have chosen the relay after all
    bool fits = by_pipe(*transfer) && line.bytes <= transfer->chunk &&
                line.offset % transfer->chunk == 0 && line.offset <= transfer->length &&
                line.bytes <= transfer->length - line.offset;
    return fits ? transfer : nullptr;
  }
  return nullptr;
}

// Empties the next line of the incoming pipe, or begins to.
bool Transfers::drain() {
  uint64_t position = pipe_drained_;
  PipeLayout& pipe = pair_.segment->incoming_pipe();
  PipeLine& line = pipe.lines[position % kPipeLines];
  // acquire: the producer's bytes, whoever wrote them.
  if (line.word.load(std::memory_order_acquire) != pipe_full(position)) return false;
  ++pipe_drained_;
  Transfer* transfer = line.bytes ? sink_of(line) : nullptr;
  if (!transfer) {
    line.word.store(pipe_drained(position), std::memory_order_release);
    pair_.wake_them = true;
    return true;
  }
  bool by_engine = transfer->local_device;
  uint64_t offset = line.offset;
  uint64_t size = line.bytes;
  uint8_t* buffer = transfer->mode == CopyMode::kStaged ? pair_.device->slab_part(position)
                                                        : pipe.buffers[position % kPipeLines];
  ++transfer->copiers;
  pair_.lock.unlock();
  Status status;
  if (by_engine) {
    status = enqueue_line(/*fills=*/false, position, transfer->local + offset, buffer, size);
  } else {
    copy_bytes(transfer->local + offset, buffer, size);
  }
  pair_.lock.lock();
  transfer->looked = now_ns();
  --transfer->copiers;
  if (by_engine && status.ok()) {
    draining_.push_back({transfer, position});
    ++transfer->lines;
    return true;
  }
  // release: our reads of the buffer are over; pairs with can_fill().
  line.word.store(pipe_drained(position), std::memory_order_release);
  pair_.wake_them = true;
  if (!status.ok()) {
    fail(*transfer, status);
    stop(transfer, status.code());
  }
  account(*transfer, 1);
  return true;
}

// Sets the engine to work on a line. After a failure nothing of it is under way.
Status Transfers::enqueue_line(bool fills, uint64_t position, void* to, const void* from,
                               uint64_t size) {
  PipeLayout& pipe = fills ? pair_.segment->outgoing_pipe() : pair_.segment->incoming_pipe();
  OH_ASSIGN_OR_RETURN(cuda::Stream stream, pair_.device->line_stream(fills, position));
  EngineCopy copy{to,
                  from,
                  size,
                  nullptr,
                  pair_.device->address_of(pipe.lines[position % kPipeLines].word),
                  fills ? pipe_full(position) : pipe_drained(position)};
  Status status = pair_.device->enqueue(stream, copy);
  if (!status.ok()) pair_.device->quiesce(stream);
  return status;
}

// Asks how the engine is doing with the oldest of its lines, as check() does.
bool Transfers::check_line(bool fills) {
  Line oldest = fills ? filling_.front() : draining_.front();
  Transfer& transfer = *oldest.transfer;
  transfer.looked = now_ns();
  ++transfer.copiers;
  pair_.lock.unlock();
  Result<cuda::Stream> stream = pair_.device->line_stream(fills, oldest.position);
  if (stream.ok()) (void)pair_.device->gpu().is_idle(*stream).ok();
  pair_.lock.lock();
  --transfer.copiers;
  return pair_.device->gpu().is_lost();
}

// Counts the lines that our engine is through with.
bool Transfers::retire_lines() {
  // acquire: the device's bytes are in place. The other side may have gone on with the line.
  while (!filling_.empty()) {
    auto [transfer, position] = filling_.front();
    PipeLine& line = pair_.segment->outgoing_pipe().lines[position % kPipeLines];
    if (line.word.load(std::memory_order_acquire) < pipe_full(position)) break;
    filling_.pop_front();
    --transfer->lines;
  }
  bool any = false;
  while (!draining_.empty()) {
    auto [transfer, position] = draining_.front();
    PipeLine& line = pair_.segment->incoming_pipe().lines[position % kPipeLines];
    if (line.word.load(std::memory_order_acquire) < pipe_drained(position)) break;
    draining_.pop_front();
    --transfer->lines;
    account(*transfer, 1);
    pair_.wake_them = any = true;
  }
  return any;
}

}  // namespace oh
