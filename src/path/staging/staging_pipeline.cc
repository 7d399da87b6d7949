// SPDX-License-Identifier: Apache-2.0
#include "path/staging/staging_pipeline.h"

#include <algorithm>
#include <utility>

#include "base/fault.h"

namespace oh {
namespace {
// Transfers without a buffer that one call checks: thousands may exist.
constexpr size_t kLooksAtIdle = 16;
}  // namespace

StagingPipeline::~StagingPipeline() {
  for (List* list : {&holding_, &idle_[0], &idle_[1]}) {
    for (const std::shared_ptr<StagingTransfer>& transfer : *list) {
      if (reap(*transfer)) continue;
      // The channel, or a device that never answered, still uses its buffers: leak them and the
      // pool, so that they are never reused.
      (void)new std::shared_ptr<StagingPool>(link_.staging);
      for (StagingTransfer::Chunk& chunk : transfer->chunks) (void)chunk.list.release();
    }
  }
}

StagedCopy& StagingPipeline::begin(Request* request, StagingDirection direction, uint64_t op,
                                   uint64_t length) {
  auto made = std::make_shared<StagingTransfer>();
  StagingTransfer& transfer = *made;
  List& idle = idle_[static_cast<size_t>(direction)];
  transfer.at = idle.insert(idle.end(), made);
  request->staged = std::move(made);
  transfer.gpu = link_.gpu;
  transfer.direction = direction;
  transfer.request = request;
  transfer.op = op;
  transfer.length = length;
  link_.count_polled(1);
  transfer.counted = true;
  link_.wake_me = true;  // a sleeping thread must poll now
  return transfer;
}

ByteView StagingPipeline::filled(Request& request, uint64_t limit) {
  StagingTransfer& transfer = transfer_of(*request.staged);
  release_until(transfer, request.moved);
  return transfer.filled(request.moved, limit);
}

void StagingPipeline::release_until(StagingTransfer& transfer, uint64_t end) {
  while (!transfer.chunks.empty()) {
    StagingTransfer::Chunk& chunk = transfer.chunks.front();
    if (chunk.end() > end) return;
    give_back(transfer, chunk);
    transfer.chunks.pop_front();
  }
  if (transfer.is_quiet()) transfer.ticket = {};
}

void StagingPipeline::give_back(const StagingTransfer& transfer, StagingTransfer::Chunk& chunk) {
  pool().give(transfer.direction, chunk.buffer);
  copier_.recycle(chunk);
}

void StagingPipeline::stop(StagedCopy& copy, Status why) {
  copy.failure = std::move(why);
  any_stopped_[static_cast<size_t>(transfer_of(copy).direction)] = true;
}

void StagingPipeline::withdraw(StagedCopy& copy) {
  copy.withdrawn = true;
  any_stopped_[static_cast<size_t>(transfer_of(copy).direction)] = true;
}

void StagingPipeline::look_at(StagedCopy& copy) {
  StagingTransfer& transfer = transfer_of(copy);
  List& idle = idle_of(transfer);
  if (!transfer.holds) idle.splice(idle.begin(), idle, transfer.at);
}

// ---- Progress -----------------------------------------------------------------------------------

bool StagingPipeline::progress() {
  bool any = false;
  for (auto next = holding_.begin(); next != holding_.end();) {
    auto at = next++;
    StagingTransfer& transfer = **at;
    any = settle(transfer) || any;
    if (!transfer.request && reap(transfer)) {
      holding_.erase(at);
    } else if (transfer.chunks.empty() && !transfer.busy) {
      // Transfers that have begun come before new ones.
      List& idle = idle_of(transfer);
      transfer.holds = false;
      idle.splice(idle.begin(), holding_, at);
    }
  }
  // A step releases the lock, so the lists are not used after it. Steps that free buffers come
  // before those that take them. Exhaustion in one direction must not block the other.
  // NOLINTNEXTLINE(performance-for-range-copy): it must outlive its place in the list
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

// Transfers with buffers come first; the others take turns. One that waits for earlier work, or for
// the peer, must not block the rest.
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

// Handles the chunks that the engine has copied since the last call.
bool StagingPipeline::settle(StagingTransfer& transfer) {
  if (!transfer.update_copied()) return false;
  if (!transfer.receives()) return true;
  release_until(transfer, transfer.copied);
  Request* request = transfer.request;
  if (request && transfer.copied == transfer.length && !transfer.withdrawn) {
    request->nbytes = transfer.length;
    request->path = link_.path;
    if (!request->internal) {
      link_.stats.count(MetricOp::kRecv, request->path, request->nbytes);
    }
    link_.finish(*request, {});
  }
  return true;
}

bool StagingPipeline::take_step(const std::shared_ptr<StagingTransfer>& held, Step step) {
  switch (step) {
    case Step::kNothing:
      return false;
    case Step::kCheck:
      return check(*held);
    case Step::kAskProducer:
      return ask_producer(*held);
    case Step::kTake:
      return take_buffer(*held);
    case Step::kCopy:
      return copy_chunk(*held);
  }
  return false;
}

bool StagingPipeline::check(StagingTransfer& transfer) {
  transfer.busy = true;
  Result<bool> idle = link_.without_lock([&] { return transfer.ticket.check(); });
  transfer.busy = false;
  // After a failure only some copies were enqueued: they are over when the stream is idle.
  if (idle.ok() && (transfer.failure.ok() || !*idle)) return false;
  transfer.ticket.write_off();
  if (!idle.ok()) stop(transfer, idle.status());
  return true;
}

bool StagingPipeline::ask_producer(StagingTransfer& transfer) {
  transfer.busy = true;
  After& after = transfer.request->device.after;
  Result<bool> complete = link_.without_lock([&] { return after.is_complete(); });
  transfer.busy = false;
  if (!complete.ok()) stop(transfer, complete.status());
  if (!complete.ok() || !*complete) return !complete.ok();
  after.reset();
  if (transfer.receives()) return true;
  Frame frame;
  frame.type = FrameType::kReady;
  frame.op = transfer.op;
  link_.send(frame);
  return true;
}

bool StagingPipeline::take_buffer(StagingTransfer& transfer) {
  transfer.busy = true;
  const bool is_open = transfer.ticket.is_open();
  CopyTicket ticket;
  Status status;
  PooledBuffer buffer = link_.without_lock([&]() -> PooledBuffer {
    Result<PooledBuffer> taken = pool().take(transfer.direction, this);
    status = taken.status();
    if (!taken.ok()) return {};
    if (!taken->data || is_open) return *taken;
    // A stream per message: a message's copies do not wait for those of another.
    Result<CopyTicket> opened = CopyTicket::open(*link_.gpu);
    status = opened.status();
    if (opened.ok()) {
      ticket = std::move(*opened);
      return *taken;
    }
    pool().give(transfer.direction, *taken);
    return {};
  });
  transfer.busy = false;
  if (ticket.is_open()) transfer.ticket = std::move(ticket);
  if (!status.ok()) stop(transfer, status);
  if (!buffer.data) return !status.ok();
  const uint64_t size = transfer.next_size(pool().buffer_size());
  transfer.chunks.push_back({.begin = transfer.begun, .size = size, .buffer = buffer});
  transfer.begun += size;
  if (transfer.receives()) grant(transfer);
  return true;
}

// Grants the sender all bytes up to the end of the last buffer.
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

bool StagingPipeline::copy_chunk(StagingTransfer& transfer) {
  transfer.busy = true;
  StagingTransfer::Chunk& chunk = *transfer.next_copy();
  if (transfer.receives() && link_.ucx) link_.ucx->targets().revoke(transfer.op, chunk.begin);
  chunk.value = transfer.ticket.next_value();
  copier_.prepare(*transfer.request, chunk);
  Status status = link_.without_lock([&] {
    OH_FAULT_POINT("transfer.copy");
    Status copied = copier_.copy(transfer, chunk);
    if (!copied.ok()) (void)transfer.ticket.drain(Deadline::after(kSecond));
    pool().grow_if_low();
    return copied;
  });
  transfer.busy = false;
  if (!status.ok()) stop(transfer, status);
  return true;
}

// ---- Ends ---------------------------------------------------------------------------------------

Request* StagingPipeline::stopped(StagingDirection direction) {
  Request* found = nullptr;
  bool more = false;
  for_each([&](const StagingTransfer& transfer) {
    if (found || transfer.direction != direction || !transfer.request || !transfer.has_stopped()) {
      return;
    }
    more = true;
    if (transfer.is_quiet()) found = transfer.request;
  });
  any_stopped_[static_cast<size_t>(direction)] = more;
  return found;
}

// Returns all buffers to the pool. False while the engine or the channel uses them.
bool StagingPipeline::reap(StagingTransfer& transfer) {
  if (!transfer.is_quiet() || (transfer.in_flight && !transfer.in_flight->is_over())) return false;
  if (transfer.receives() && link_.ucx) link_.ucx->targets().revoke(transfer.op);
  release_until(transfer, UINT64_MAX);
  pool().forget(transfer.direction, this);
  count_out(transfer);
  return true;
}

// Waiting threads need not poll for it any more.
void StagingPipeline::count_out(StagingTransfer& transfer) {
  if (std::exchange(transfer.counted, false)) link_.count_polled(-1);
}

bool StagingPipeline::stop_all(const Status& status, Deadline engines) {
  for_each([&](StagingTransfer& transfer) {
    if (!transfer.is_whole() && transfer.failure.ok()) transfer.failure = status;
  });
  return !at_work(engines);
}

bool StagingPipeline::at_work(Deadline engines) const {
  const bool wait = !engines.passed();
  bool any = false;
  for_each([&](const StagingTransfer& transfer) {
    any = any || transfer.busy || (wait && transfer.copying());
  });
  return any;
}

void StagingPipeline::end_receives(const Status& status, bool whole) {
  for_each([&](const StagingTransfer& transfer) {
    const bool ours = transfer.receives() && transfer.request;
    if (ours && (whole || !transfer.is_whole())) link_.leave_in_doubt(*transfer.request, status);
  });
}

void StagingPipeline::close() {
  for (List* list : {&holding_, &idle_[0], &idle_[1]}) {
    std::erase_if(*list, [&](const std::shared_ptr<StagingTransfer>& transfer) {
      count_out(*transfer);
      return reap(*transfer);
    });
  }
  if (!link_.staging) return;
  pool().forget(StagingDirection::kOut, this);
  pool().forget(StagingDirection::kIn, this);
}

}  // namespace oh
