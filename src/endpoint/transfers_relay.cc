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
  Lines lines{&transfer, position, 1};
  ++transfer.copiers;
  pair_.lock.unlock();
  OH_FAULT_POINT("transfer.copy");
  Status status;
  if (by_engine) {
    status = enqueue_lines(/*fills=*/true, lines, buffer, transfer.local + offset, size);
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
    filling_.push_back(lines);
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

// Empties the next lines of the incoming pipe, or begins to.
bool Transfers::drain() {
  uint64_t position = pipe_drained_;
  PipeLayout& pipe = pair_.segment->incoming_pipe();
  PipeLine& line = pipe.lines[position % kPipeLines];
  // acquire: the producer's bytes, whoever wrote them.
  if (line.word.load(std::memory_order_acquire) != pipe_full(position)) return false;
  Transfer* transfer = line.bytes ? sink_of(line) : nullptr;
  if (!transfer) {
    ++pipe_drained_;
    release_lines({nullptr, position, 1});
    return true;
  }
  bool staged = transfer->mode == CopyMode::kStaged;
  bool by_engine = transfer->local_device;
  uint64_t offset = line.offset;
  uint64_t size = line.bytes;
  Lines lines{transfer, position, 1};
  if (staged) size += add_lines(&lines, offset + size);
  uint8_t* buffer =
      staged ? pair_.device->slab_part(position) : pipe.buffers[position % kPipeLines];
  pipe_drained_ += lines.count;
  ++transfer->copiers;
  pair_.lock.unlock();
  Status status;
  if (by_engine) {
    status = enqueue_lines(/*fills=*/false, lines, transfer->local + offset, buffer, size);
  } else {
    copy_bytes(transfer->local + offset, buffer, size);
  }
  pair_.lock.lock();
  transfer->looked = now_ns();
  --transfer->copiers;
  if (by_engine && status.ok()) {
    draining_.push_back(lines);
    transfer->lines += lines.count;
    return true;
  }
  release_lines(lines);
  if (!status.ok()) {
    fail(*transfer, status);
    stop(transfer, status.code());
  }
  account(*transfer, lines.count);
  return true;
}

// Further lines that lie behind `lines` in the slab as their bytes do in the message, at `offset`:
// one copy for all of them, as a copy within a device costs more to begin than to make. Returns
// their bytes.
uint64_t Transfers::add_lines(Lines* lines, uint64_t offset) {
  PipeLayout& pipe = pair_.segment->incoming_pipe();
  const PipeLine& first = pipe.lines[lines->position % kPipeLines];
  uint64_t size = 0;
  // Half of them at most: the other half is filled meanwhile.
  while (lines->count < kPipeLines / 2 && (lines->last() + 1) % kPipeLines != 0) {
    uint64_t position = lines->last() + 1;
    const PipeLine& line = pipe.lines[position % kPipeLines];
    if (line.word.load(std::memory_order_acquire) != pipe_full(position)) break;
    uint64_t at = offset + size;
    if (at >= lines->transfer->length || at % lines->transfer->chunk != 0) break;
    bool next = line.slot == first.slot && line.sequence == first.sequence &&
                line.from_owner == first.from_owner && line.offset == at;
    uint64_t bytes = line.bytes;
    if (!next || bytes == 0 || bytes > lines->transfer->chunk ||
        bytes > lines->transfer->length - at) {
      break;
    }
    size += bytes;
    ++lines->count;
  }
  return size;
}

// The other side may fill them again.
void Transfers::release_lines(const Lines& lines) {
  PipeLayout& pipe = pair_.segment->incoming_pipe();
  for (uint64_t position = lines.position; position <= lines.last(); ++position) {
    // release: our reads of the buffer are over; pairs with can_fill().
    pipe.lines[position % kPipeLines].word.store(pipe_drained(position), std::memory_order_release);
  }
  pair_.wake_them = true;
}

// Sets the engine to work on lines. After a failure nothing of it is under way.
Status Transfers::enqueue_lines(bool fills, const Lines& lines, void* to, const void* from,
                                uint64_t size) {
  PipeLayout& pipe = fills ? pair_.segment->outgoing_pipe() : pair_.segment->incoming_pipe();
  OH_ASSIGN_OR_RETURN(cuda::Stream stream, pair_.device->line_stream(fills, lines.position));
  uint64_t last = lines.last();
  EngineCopy copy{to,
                  from,
                  size,
                  nullptr,
                  pair_.device->address_of(pipe.lines[last % kPipeLines].word),
                  fills ? pipe_full(last) : pipe_drained(last)};
  Status status = pair_.device->enqueue(stream, copy);
  if (!status.ok()) pair_.device->quiesce(stream);
  return status;
}

// Asks how the engine is doing with the oldest of its lines, as check() does.
bool Transfers::check_line(bool fills) {
  Lines oldest = fills ? filling_.front() : draining_.front();
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
    const Lines& lines = filling_.front();
    PipeLine& line = pair_.segment->outgoing_pipe().lines[lines.position % kPipeLines];
    if (line.word.load(std::memory_order_acquire) < pipe_full(lines.position)) break;
    --lines.transfer->lines;
    filling_.pop_front();
  }
  bool any = false;
  while (!draining_.empty()) {
    Lines lines = draining_.front();
    PipeLine& line = pair_.segment->incoming_pipe().lines[lines.last() % kPipeLines];
    if (line.word.load(std::memory_order_acquire) < pipe_drained(lines.last())) break;
    draining_.pop_front();
    // The device has released the last one.
    if (lines.count > 1) release_lines({nullptr, lines.position, lines.count - 1});
    lines.transfer->lines -= lines.count;
    account(*lines.transfer, lines.count);
    pair_.wake_them = any = true;
  }
  return any;
}

}  // namespace oh
