// SPDX-License-Identifier: Apache-2.0
#include "path/direct/pipe.h"

#include <algorithm>

#include "base/clock.h"
#include "base/copy.h"
#include "base/fault.h"
#include "device/copy_ticket.h"

namespace oh {
namespace {
// Copies enqueued at the local engine at once: enough that it is never idle, few enough that one
// copy fills all lines that become free meanwhile.
constexpr size_t kQueued = 2;
}  // namespace

uint32_t Pipe::free_lines(const Transfer& transfer) {
  PipeLayout& pipe = link_.segment->outgoing_pipe();
  while (!taken_.empty()) {
    uint64_t position = taken_.front();
    // acquire: the consumer's reads of the buffers are over.
    uint64_t word = pipe.lines[position % kPipeLines].word.load(std::memory_order_acquire);
    if (word != pipe_empty(position)) break;
    taken_.pop_front();
  }
  uint64_t taken = taken_.empty() ? 0 : filled_ - taken_.front();
  auto free = static_cast<uint32_t>(kPipeLines - taken);
  // The CPU fills line by line, so that the peer can begin with the first one.
  if (!transfer.local_device) return std::min(free, 1u);
  if (filling_.size() >= kQueued) return 0;
  auto up_to_end = static_cast<uint32_t>(kPipeLines - filled_ % kPipeLines);
  return std::min({free, up_to_end, kMostOfSpan});
}

bool Pipe::fill(Transfer& transfer) {
  uint64_t offset;
  uint64_t size;
  uint32_t lines = transfer.take_chunks(/*from_back=*/false, free_lines(transfer), &offset, &size);
  if (lines == 0) return false;
  Span span{filled_, lines, &transfer};
  filled_ += lines;
  taken_.push_back(span.position);
  PipeLayout& pipe = link_.segment->outgoing_pipe();
  uint64_t index = span.position % kPipeLines;
  PipeLine& line = pipe.lines[index];
  uint8_t* buffer = transfer.mode == CopyMode::kStaged ? transfer.mapped + index * kSlabChunk
                                                       : pipe.buffers[index];
  line.span = {offset, size, transfer.index, transfer.sequence, transfer.owner, lines};
  bool by_engine = transfer.local_device;
  Status status = without_lock(link_, transfer, [&]() -> Status {
    OH_FAULT_POINT("transfer.copy");
    uint8_t* from = transfer.local + offset;
    if (by_engine) return enqueue_span(/*fills=*/true, span, buffer, from, size);
    copy_bytes(buffer, from, size);
    return {};
  });
  transfer.looked = now_ns();
  if (!status.ok()) {
    // The span is taken: send it with 0 bytes. Count its chunks here, as the sink will not.
    line.span.bytes = 0;
    transfer.fail(status);
    transfer.stop(status.code());
    transfer.account(lines);
  }
  if (by_engine && status.ok()) {
    filling_.push_back(span);
    transfer.lines += lines;
  } else {
    // release: the bytes and the line's fields; pairs with drain().
    line.word.store(pipe_full(span.position), std::memory_order_release);
    link_.wake_them = true;
  }
  return true;
}

bool Pipe::drain() {
  PipeLayout& pipe = link_.segment->incoming_pipe();
  uint64_t index = drained_ % kPipeLines;
  PipeLine& line = pipe.lines[index];
  // acquire: the producer's bytes, written by its CPU or an engine.
  if (line.word.load(std::memory_order_acquire) != pipe_full(drained_)) return false;
  const PipeSpan there = line.span;  // read once: the peer could change it after the checks
  Span span{drained_, std::clamp<uint32_t>(there.lines, 1, kPipeLines - index)};
  drained_ += span.lines;
  Transfer* transfer = there.bytes && span.lines == there.lines ? sinks_.sink_of(there) : nullptr;
  if (!transfer) {
    line.word.store(pipe_empty(span.position), std::memory_order_release);
    link_.wake_them = true;
    return true;
  }
  span.transfer = transfer;
  bool by_engine = transfer->local_device;
  uint8_t* to = transfer->local + there.offset;
  uint8_t* buffer =
      transfer->mode == CopyMode::kStaged ? link_.device->slab_part(index) : pipe.buffers[index];
  Status status = without_lock(link_, *transfer, [&]() -> Status {
    if (by_engine) return enqueue_span(/*fills=*/false, span, to, buffer, there.bytes);
    copy_bytes(to, buffer, there.bytes);
    return {};
  });
  transfer->looked = now_ns();
  if (by_engine && status.ok()) {
    draining_.push_back(span);
    transfer->lines += span.lines;
    return true;
  }
  // release: local reads of the buffers are over; pairs with free_lines().
  line.word.store(pipe_empty(span.position), std::memory_order_release);
  link_.wake_them = true;
  if (!status.ok()) {
    transfer->fail(status);
    transfer->stop(status.code());
  }
  transfer->account(span.lines);
  return true;
}

// Enqueues the copy of a span at the engine. After a failure none of it is in flight.
Status Pipe::enqueue_span(bool fills, const Span& span, void* to, const void* from, uint64_t size) {
  PipeLayout& pipe = fills ? link_.segment->outgoing_pipe() : link_.segment->incoming_pipe();
  OH_ASSIGN_OR_RETURN(cuda::Stream stream, link_.device->line_stream(fills));
  EngineCopy copy{to,
                  from,
                  size,
                  nullptr,
                  link_.device->address_of(pipe.lines[span.position % kPipeLines].word),
                  fills ? pipe_full(span.position) : pipe_empty(span.position)};
  Status status = link_.device->enqueue(stream, copy);
  if (!status.ok()) link_.device->quiesce(stream);
  return status;
}

bool Pipe::is_late(const std::deque<Span>& spans) {
  return !spans.empty() && now_ns() - spans.front().transfer->looked >= kAskForErrors;
}

// Queries the stream of a span that takes long: a lost context never writes its word.
bool Pipe::check() {
  const bool fills = is_late(filling_);
  Transfer& transfer = *(fills ? filling_ : draining_).front().transfer;
  transfer.looked = now_ns();
  without_lock(link_, transfer, [&] {
    Result<cuda::Stream> stream = link_.device->line_stream(fills);
    if (stream.ok()) (void)link_.device->gpu().is_idle(*stream).ok();
  });
  return link_.device->gpu().is_lost();
}

bool Pipe::retire() {
  // acquire: the device's bytes are in place. The peer may have drained the span since.
  while (!filling_.empty()) {
    auto [position, lines, transfer] = filling_.front();
    PipeLine& line = link_.segment->outgoing_pipe().lines[position % kPipeLines];
    if (line.word.load(std::memory_order_acquire) < pipe_full(position)) break;
    filling_.pop_front();
    transfer->lines -= lines;
  }
  bool any = false;
  while (!draining_.empty()) {
    auto [position, lines, transfer] = draining_.front();
    PipeLine& line = link_.segment->incoming_pipe().lines[position % kPipeLines];
    if (line.word.load(std::memory_order_acquire) < pipe_empty(position)) break;
    draining_.pop_front();
    transfer->lines -= lines;
    transfer->account(lines);
    link_.wake_them = any = true;
  }
  return any;
}

void Pipe::give_up(const Status& loss) {
  for (std::deque<Span>* spans : {&filling_, &draining_}) {
    for (const Span& span : *spans) {
      span.transfer->lines -= span.lines;
      span.transfer->fail(loss);
      span.transfer->account(span.lines);
    }
    spans->clear();
  }
}

}  // namespace oh
