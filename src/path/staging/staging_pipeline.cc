// SPDX-License-Identifier: Apache-2.0
#include "path/staging/staging_pipeline.h"

#include <algorithm>

#include "base/fault.h"

namespace oh {
namespace {
// In one call, at those that hold nothing: there may be thousands.
constexpr size_t kLooksAtIdle = 16;
}  // namespace

StagingTransfer& StagingPipeline::begin(Request* request, StagingDirection direction, uint64_t op,
                                        uint64_t length) {
  List& idle = idle_[static_cast<size_t>(direction)];
  request->staged = idle.emplace_back(std::make_shared<StagingTransfer>());
  StagingTransfer& transfer = *request->staged;
  transfer.at = std::prev(idle.end());
  transfer.gpu = link_.gpu;
  transfer.direction = direction;
  transfer.request = request;
  transfer.op = op;
  transfer.length = length;
  link_.host->count_polled(1);
  transfer.counted = true;
  link_.wake_me = true;  // who sleeps is to poll
  return transfer;
}

ByteView StagingPipeline::filled(Request& request, uint64_t limit) {
  StagingTransfer& transfer = *request.staged;
  release_until(transfer, request.moved);
  if (transfer.chunks.empty()) return {};
  const StagingTransfer::Chunk& chunk = transfer.chunks.front();
  if (request.moved < chunk.begin || chunk.begin + chunk.size > transfer.copied) return {};
  const uint64_t end = std::min(chunk.begin + chunk.size, limit);
  if (end <= request.moved) return {};
  return {chunk.buffer.data + (request.moved - chunk.begin), end - request.moved};
}

uint8_t* StagingPipeline::place(StagingTransfer& transfer, uint64_t offset, uint64_t size) const {
  for (const StagingTransfer::Chunk& chunk : transfer.chunks) {
    if (offset < chunk.begin || offset - chunk.begin >= chunk.size) continue;
    if (chunk.value != 0 || size > chunk.size - (offset - chunk.begin)) return nullptr;
    return chunk.buffer.data + (offset - chunk.begin);
  }
  return nullptr;
}

void StagingPipeline::release_until(StagingTransfer& transfer, uint64_t end) {
  while (!transfer.chunks.empty()) {
    StagingTransfer::Chunk& chunk = transfer.chunks.front();
    if (chunk.begin + chunk.size > end) return;
    give_back(transfer, chunk);
    transfer.chunks.pop_front();
  }
  close(transfer);
}

// A stream and a word are held with buffers only.
void StagingPipeline::close(StagingTransfer& transfer) {
  if (transfer.is_quiet()) transfer.ticket = {};
}

// Up to which byte buffers may be taken.
uint64_t StagingPipeline::may_begin(const StagingTransfer& transfer) const {
  if (transfer.direction == StagingDirection::kIn) return transfer.length;
  return std::min(transfer.length, transfer.request->granted);
}

StagingPipeline::Step StagingPipeline::next_step(StagingTransfer& transfer) {
  if (transfer.busy) return Step::kNothing;
  if (transfer.ticket.is_late()) return Step::kCheck;
  if (!transfer.request || !transfer.failure.ok() || transfer.withdrawn) return Step::kNothing;
  // One copy behind the other: the next is enqueued while this one is under way.
  for (StagingTransfer::Chunk& chunk : transfer.chunks) {
    if (chunk.value != 0) continue;
    bool ready =
        transfer.direction == StagingDirection::kOut || chunk.begin + chunk.size <= transfer.there;
    if (ready) return Step::kCopy;
    break;
  }
  if (transfer.request->device.after.pending()) return Step::kAskProducer;
  bool more = transfer.begun < may_begin(transfer) && !transfer.awaited;
  return more && transfer.chunks.size() < link_.staging_depth ? Step::kTake : Step::kNothing;
}

void StagingPipeline::stop(StagingTransfer& transfer, Status why) {
  transfer.failure = std::move(why);
  any_stopped_[static_cast<size_t>(transfer.direction)] = true;
}

void StagingPipeline::withdraw(StagingTransfer& transfer) {
  transfer.withdrawn = true;
  any_stopped_[static_cast<size_t>(transfer.direction)] = true;
}

void StagingPipeline::look_at(StagingTransfer& transfer) {
  List& idle = idle_of(transfer);
  if (!transfer.holds) idle.splice(idle.begin(), idle, transfer.at);
}

bool StagingPipeline::progress() {
  bool any = false;
  for (auto next = holding_.begin(); next != holding_.end();) {
    auto at = next++;
    StagingTransfer& transfer = **at;
    any = settle(transfer) || any;
    if (!transfer.request && reap(transfer)) {
      holding_.erase(at);
    } else if (transfer.chunks.empty() && !transfer.busy) {
      // What has begun goes on before others begin.
      List& idle = idle_of(transfer);
      transfer.holds = false;
      idle.splice(idle.begin(), holding_, at);
    }
  }
  // A step releases the lock, so it is the last look at the lists. What frees buffers goes
  // before what takes them, and exhaustion in one direction must not block the other.
  for (std::shared_ptr<StagingTransfer> transfer : holding_) {
    Step step = next_step(*transfer);
    if (step != Step::kNothing && step != Step::kTake) return take_step(transfer, step) || any;
  }
  for (size_t i = 0; i < 2 && !any; ++i) {
    turn_ ^= 1;
    any = take_more(static_cast<StagingDirection>(turn_));
  }
  return any;
}

// Those that have buffers come first. The others each in its turn: one that waits for earlier work,
// or for the other side, must not block them.
bool StagingPipeline::take_more(StagingDirection direction) {
  auto wants = [&](const std::shared_ptr<StagingTransfer>& transfer) {
    return transfer->direction == direction && next_step(*transfer) == Step::kTake;
  };
  auto first = std::find_if(holding_.begin(), holding_.end(), wants);
  const bool waits = first != holding_.end();
  if (waits && take_step(std::shared_ptr(*first), Step::kTake)) return true;
  List& idle = idle_[static_cast<size_t>(direction)];
  for (size_t looks = std::min(idle.size(), kLooksAtIdle); looks-- > 0 && !idle.empty();) {
    std::shared_ptr<StagingTransfer> transfer = idle.front();
    if (!transfer->request && reap(*transfer)) {
      idle.pop_front();
      return true;
    }
    Step step = next_step(*transfer);
    transfer->holds = step == Step::kTake && !waits;
    List& where = transfer->holds ? holding_ : idle;
    where.splice(where.end(), idle, idle.begin());
    if (transfer->holds || (step != Step::kNothing && step != Step::kTake)) {
      return take_step(transfer, step);
    }
  }
  return false;
}

// What the engine has done since the last look.
bool StagingPipeline::settle(StagingTransfer& transfer) {
  if (transfer.chunks.empty() || !transfer.ticket.is_open()) return false;
  const uint64_t seen = transfer.ticket.seen();
  uint64_t before = transfer.copied;
  for (const StagingTransfer::Chunk& chunk : transfer.chunks) {
    if (chunk.value == 0 || chunk.value > seen) break;
    transfer.copied = std::max(transfer.copied, chunk.begin + chunk.size);
  }
  if (transfer.copied == before) return false;
  if (transfer.direction == StagingDirection::kOut) return true;
  release_until(transfer, transfer.copied);
  Request* request = transfer.request;
  if (request && transfer.copied == transfer.length && !transfer.withdrawn) {
    request->nbytes = transfer.length;
    request->path = link_.path;
    link_.stats.count_received(request->path, request->nbytes);
    link_.finish(*request, {});
  }
  return true;
}

bool StagingPipeline::take_step(const std::shared_ptr<StagingTransfer>& held, Step step) {
  StagingTransfer& transfer = *held;
  transfer.busy = true;
  if (step == Step::kCheck) {
    Result<bool> idle = link_.without_lock([&] { return transfer.ticket.check(); });
    transfer.busy = false;
    // After a failure not all of it was enqueued.
    if (idle.ok() && (transfer.failure.ok() || !*idle)) return false;
    transfer.ticket.write_off();
    if (!idle.ok()) stop(transfer, idle.status());
    return true;
  }
  Request& request = *transfer.request;
  if (step == Step::kAskProducer) {
    After& after = request.device.after;
    Result<bool> complete = link_.without_lock([&] { return after.is_complete(); });
    transfer.busy = false;
    if (!complete.ok()) stop(transfer, complete.status());
    if (!complete.ok() || !*complete) return !complete.ok();
    after.reset();
    if (transfer.direction == StagingDirection::kOut) {
      Frame frame;
      frame.type = FrameType::kReady;
      frame.op = transfer.op;
      link_.send(frame);
    }
    return true;
  }
  if (step == Step::kTake) {
    CopyTicket ticket;
    const bool is_open = transfer.ticket.is_open();
    Status status;
    Result<PooledBuffer> buffer = link_.without_lock([&] {
      Result<PooledBuffer> taken = pool().take(transfer.direction, this);
      status = taken.status();
      if (taken.ok() && taken->data && !is_open) {
        // Copies of different messages pass each other: each has a stream of its own.
        Result<CopyTicket> opened = CopyTicket::open(*link_.gpu);
        status = opened.status();
        if (opened.ok()) ticket = std::move(*opened);
      }
      if (!status.ok() && taken.ok()) pool().give(transfer.direction, *taken);
      return taken;
    });
    transfer.busy = false;
    if (ticket.is_open()) transfer.ticket = std::move(ticket);
    if (!status.ok()) stop(transfer, status);
    if (!status.ok() || !buffer->data) return !status.ok();
    uint64_t size = std::min(pool().buffer_size(), may_begin(transfer) - transfer.begun);
    // It is sent in parts that end where the receiver's buffers do.
    if (uint64_t border = request.border) {
      size = std::min(size, border - transfer.begun % border);
    }
    transfer.chunks.push_back({.begin = transfer.begun, .size = size, .buffer = *buffer});
    transfer.begun += size;
    if (transfer.direction == StagingDirection::kIn) grant(transfer);
    return true;
  }
  auto chunk = std::find_if(transfer.chunks.begin(), transfer.chunks.end(),
                            [](const StagingTransfer::Chunk& other) { return other.value == 0; });
  if (transfer.direction == StagingDirection::kIn && link_.ucx) {
    link_.ucx->targets().revoke(transfer.op, chunk->begin);
  }
  chunk->value = transfer.ticket.next_value();
  take_list(transfer, *chunk);
  Status status = link_.without_lock([&] {
    OH_FAULT_POINT("transfer.copy");
    Status copied = copy(transfer, *chunk);
    if (!copied.ok()) (void)transfer.ticket.drain(Deadline::after(kSecond));
    pool().grow_if_low();
    return copied;
  });
  transfer.busy = false;
  if (!status.ok()) stop(transfer, status);
  return true;
}

// Lets the sender go on to the end of the last buffer.
void StagingPipeline::grant(const StagingTransfer& transfer) {
  const StagingTransfer::Chunk& last = transfer.chunks.back();
  if (link_.ucx) link_.ucx->targets().post(transfer.op, last.buffer.data, last.begin, last.size);
  Frame frame;
  frame.type = FrameType::kCts;
  frame.op = transfer.op;
  frame.length = transfer.begun;
  frame.address = pool().buffer_size();
  link_.send(frame);
}

}  // namespace oh
