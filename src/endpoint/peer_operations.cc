// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "endpoint/peer.h"

namespace oh {
namespace {
constexpr size_t kLooksForSmall = 1000;  // a few microseconds
// How long a send of device memory looks for its advert, when somebody waits for it or the engine
// has to wait for an event. A receive that is posted at the same time is found so, which saves the
// announcement and its answer, and the question to the driver.
constexpr int64_t kAdvertTime = 1200;
}  // namespace

// Whether there is a way for the request's memory.
Status Peer::check_memory(const Request& request) const {
  if (!request.on_device || pair_.device) return {};
  // Through pinned memory, by our progress.
  if (pair_.gpu && !pair_.segment) return owner_.serve(), Status();
  return no_way_for_devices();
}

Status Peer::no_way_for_devices() const {
  if (!why_no_device_.ok()) return why_no_device_;
  return error(OH_ERR_NOT_VIABLE,
               "device memory has no way to %s: this endpoint is for host memory",
               pair_.name.c_str());
}

Status Peer::post_send(Request* request) {
  PairGuard guard(pair_);
  OH_RETURN_IF_ERROR(check_open());
  OH_RETURN_IF_ERROR(check_memory(*request));
  if (!sender_.has_room()) {
    ++pair_.stats.back_pressure;
    return error(OH_AGAIN, "%u sends to %s wait for their receives: make progress and try again",
                 pair_.pending_sends, pair_.name.c_str());
  }
  request->peer = this;
  request->message_tag = request->tag;
  // A large send looks for an advert first, so what has come is looked at first.
  bool may_be_advertised = request->on_device || request->size > pair_.mine.eager_max;
  if (may_be_advertised && pair_.ring && pair_.ring->ready()) {
    progress_locked(nullptr);
    OH_RETURN_IF_ERROR(check_open());
  }
  if (request->on_device && (request->attended || request->pending()) && pair_.ring) {
    int64_t begin = now_ns();
    while (!sender_.has_advert(*request) && now_ns() - begin < kAdvertTime) {
      if (!pair_.ring->ready()) continue;
      progress_locked(nullptr);
      OH_RETURN_IF_ERROR(check_open());
    }
  }
  // Nobody may be here when its receive comes: if it is ready, the other side's engine does it.
  if (request->pending() && !request->attended && !sender_.has_advert(*request)) {
    OH_RETURN_IF_ERROR(ask_producer(*request));
  }
  sender_.post(request);
  // The engine is set to work before the call returns.
  if (request->on_device && transfers_.has_active()) transfers_.work(request->transfer);
  update_posted();
  return {};
}

// Whether the work that the request waits for is done already. The lock is let go.
Status Peer::ask_producer(Request& request) {
  After& after = request.device.after;
  Result<bool> complete = pair_.without_lock([&] {
    Result<bool> asked = after.is_complete();
    if (asked.ok() && *asked) after.reset();
    return asked;
  });
  OH_RETURN_IF_ERROR(complete.status());
  return check_open();
}

bool Peer::send_now(const uint8_t* data, size_t size, uint64_t tag) {
  if (!pair_.lock.try_lock()) return false;
  PairGuard guard(pair_, PairGuard::Adopt{});
  return state_.load(std::memory_order_relaxed) == State::kOpen &&
         sender_.send_now(data, size, tag);
}

bool Peer::recv_now(uint8_t* data, size_t capacity, uint64_t tag, Receiver::Received* received) {
  // A large receive is advertised while it waits.
  if (capacity > pair_.theirs.eager_max || !pair_.lock.try_lock()) return false;
  PairGuard guard(pair_, PairGuard::Adopt{});
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return false;
  Receiver::TagRx* entry = receiver_.watch(tag);
  if (!entry || pair_.busy.load(std::memory_order_relaxed)) return false;
  for (size_t i = 0; i < kLooksForSmall && !pair_.lock.contended(); ++i) {
    if (!pair_.ring->ready() || pair_.ring->skip_pad()) continue;
    return receiver_.take_next(*entry, data, capacity, received);
  }
  return false;
}

Status Peer::post_recv(Request* request) {
  if (request->on_device) transfers_.prepare_slab(*request->device.exported);
  PairGuard guard(pair_);
  request->peer = this;
  // The next message may be this one's: then it is over.
  if (state_.load(std::memory_order_relaxed) == State::kOpen &&
      !pair_.busy.load(std::memory_order_relaxed) && receiver_.take_now(request)) {
    return {};
  }
  // What came before the peer was lost is still to be had.
  if (state_.load(std::memory_order_relaxed) == State::kLost && receiver_.post_early(request)) {
    update_busy();
    return {};
  }
  OH_RETURN_IF_ERROR(check_open());
  OH_RETURN_IF_ERROR(check_memory(*request));
  receiver_.post(request);
  // What has come already needs no advert.
  if (pair_.ring && pair_.ring->ready()) progress_locked(request);
  if (!request->ended()) receiver_.advertise_posted(request);
  if (!request->ended() && request->on_device && transfers_.has_active()) {
    transfers_.work(request->transfer);
  }
  update_busy();
  return {};
}

// So that the target's progress does not depend on its calls.
Status Peer::ask_to_serve() {
  {
    PairGuard guard(pair_);
    OH_RETURN_IF_ERROR(check_open());
    if (std::exchange(asked_to_serve_, true)) return {};
  }
  if (connection_) return connection_->send_control(Control::kServe, {});
  owner_.ask_to_serve(identity_.endpoint);
  return {};
}

Status Peer::post_notification(Request* request, ByteView bytes) {
  PairGuard guard(pair_);
  OH_RETURN_IF_ERROR(check_open());
  request->peer = this;
  one_sided_.post_notification(request, bytes);
  update_posted();
  return {};
}

Status Peer::signal(uint32_t slot, uint64_t count) {
  PairGuard guard(pair_);
  OH_RETURN_IF_ERROR(check_open());
  one_sided_.signal(slot, count);
  update_posted();
  return {};
}

bool Peer::take_signals(uint32_t slot, uint64_t count) {
  PairGuard guard(pair_);
  return one_sided_.take_signals(slot, count);
}

bool Peer::has_signals(uint32_t slot, uint64_t count) {
  PairGuard guard(pair_);
  return one_sided_.signals_waiting(slot) >= count;
}

std::optional<Receiver::Announced> Peer::probe(uint64_t tag) {
  PairGuard guard(pair_);
  return receiver_.probe(tag);
}

void Peer::notification_collected(size_t bytes) {
  PairGuard guard(pair_);
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return;
  one_sided_.give_back(bytes);
  update_busy();
}

bool Peer::try_end(Request* request, const Status& status, Force force) {
  PairGuard guard(pair_);
  if (request->ended()) return true;
  if (!owns(*request)) return false;
  bool ended = false;
  switch (request->kind) {
    case OpKind::kSend:
      ended = sender_.cancel(request, status, force == Force::kGiveUp);
      break;
    case OpKind::kRecv:
      ended = receiver_.cancel(request, status, force == Force::kGiveUp);
      // What it waits for has come over UCX: with the lock held nobody keeps us from it.
      if (!ended && force == Force::kGiveUp && pair_.ucx) {
        progress_locked(request);
        if (request->ended()) return true;
      }
      break;
    case OpKind::kRecvBatch:
      ended = batches_.cancel(request, status, force == Force::kGiveUp);
      break;
    default:
      if (force == Force::kCancel && one_sided_.has_begun(*request)) break;
      ended = one_sided_.cancel(request, status, force == Force::kGiveUp);
      break;
  }
  if (!ended && force != Force::kCancel && request->transfer && request->phase == Phase::kDirect) {
    ended = transfers_.abandon(request->transfer, status);
    if (!ended && force == Force::kGiveUp && request->transfer->copiers == 0) {
      transfers_.orphan(request->transfer);
      pair_.finish(*request, error(OH_ERR_IN_DOUBT,
                                   "%s; %s has begun to copy and may still touch the buffer: keep "
                                   "it until buffer_released()",
                                   status.text().c_str(), pair_.name.c_str()));
      ended = true;
    }
  }
  if (ended) {
    force == Force::kCancel ? ++pair_.stats.cancelled : ++pair_.stats.timeouts;
  }
  update_busy();
  return ended;
}

void Peer::attend(Request* request, bool attended) {
  PairGuard guard(pair_);
  if (!request->ended() && owns(*request)) transfers_.attend(request, attended);
}

bool Peer::detach(Request* request) {
  PairGuard guard(pair_);
  if (request->ended()) {
    owner_.recycle(request);
  } else if (owns(*request)) {
    request->detached.store(1, std::memory_order_relaxed);
  } else {
    return false;
  }
  return true;
}

bool Peer::buffer_released(const Request* request) {
  if (!request->ended()) return false;
  if (request->doubts.empty() && !request->doubt_region) return true;
  PairGuard guard(pair_);
  if (request->doubt_region && !batches_.released(*request)) return false;
  return released(request->doubts);
}

bool Peer::released(const std::vector<Doubt>& doubts) {
  // A process that is gone writes no more.
  bool dead = connection_ && connection_->peer_is_dead();
  for (const Doubt& doubt : doubts) {
    bool free = doubt.crossing ? doubt.crossing->is_quiet()
                : doubt.flight ? doubt.flight->is_over()
                               : transfers_.released(doubt, dead);
    if (!free) return false;
  }
  return true;
}

void Peer::retire_region(const RegionRecord& region) {
  PairGuard guard(pair_);
  one_sided_.retire(region);
  update_busy();
}

Status Peer::wait_until_retired(const RegionRecord& region, Deadline deadline) {
  bool left = false;
  while (true) {
    // At least one look, if others have used up the time.
    const bool last = deadline.passed();
    if (pair_.ucx) pair_.ucx->worker().progress();
    {
      PairGuard guard(pair_);
      left = one_sided_.leave(region) || (progress_locked(nullptr) && one_sided_.leave(region));
    }
    if (left || last) break;
    sched_yield();
  }
  if (left && wait_until_outside(deadline)) return {};
  return timed_out(deadline.length(),
                   "%s is still inside a one-sided operation: the region's memory must not be "
                   "given away yet (no answer from it for %.3f s)",
                   pair_.name.c_str(), static_cast<double>(unresponsive_for()) / 1e9);
}

// The board says already that the region is gone, or the segment that the link is. Operations that
// looked before hold the former phase; new ones take the next and see it.
bool Peer::wait_until_outside(Deadline deadline, bool device) {
  if (!pair_.segment) return wait_until_left(deadline);
  SegmentDirection& direction = pair_.segment->incoming();
  std::atomic<uint64_t>& phase = direction.access_phase.phase;
  auto empty = [&](uint64_t of) {
    return direction.access.active[of & 1].load(std::memory_order_seq_cst) == 0;
  };
  // The phase moves on only when the one before it is empty: a wait that gave up may have left
  // somebody there.
  uint64_t former = phase.load(std::memory_order_seq_cst);
  bool moved = false;
  auto through = [&] {
    if (!moved && empty(former + 1)) moved = phase.compare_exchange_strong(former, former + 1);
    // Two phases on, another thread has seen it empty.
    return moved && (empty(former) || phase.load(std::memory_order_seq_cst) > former + 1);
  };
  while (!through()) {
    // The dead write no more, and whoever said goodbye had left before.
    if (device ? process_is_dead() : connection_ && connection_->peer_is_dead()) return true;
    if (deadline.passed()) return false;
    if (!moved) former = phase.load(std::memory_order_seq_cst);
    sched_yield();
  }
  return true;
}

// What crosses is known here: where an engine of ours is, and what the channel still sends.
bool Peer::wait_until_left(Deadline deadline) {
  while (true) {
    if (pair_.ucx) pair_.ucx->worker().progress();
    {
      PairGuard guard(pair_);
      if (one_sided_.all_have_left()) return true;
    }
    if (deadline.passed()) return false;
    sched_yield();
  }
}

Status Peer::still_there() {
  if (!connection_ || connection_->is_open()) return {};
  return error(OH_ERR_PEER_LOST, "%s ended while bytes were copied", pair_.name.c_str());
}

Stats Peer::stats() {
  Stats found;
  {
    PairGuard guard(pair_);
    found = pair_.stats;
    if (pair_.ucx) {
      found.packed = pair_.ucx->counts().packed;
      found.deferred = pair_.ucx->counts().deferred;
    }
  }
  stream_->add_to(&found);
  return found;
}

std::string Peer::flight_record() {
  PairGuard guard(pair_);
  return pair_.flight.text(now_ns());
}

Status Peer::take_async_error() {
  {
    PairGuard guard(pair_);
    Status status = std::exchange(async_error_, Status());
    if (!status.ok()) return status;
  }
  Status status = stream_->take_error();
  // Its waits were ended by that.
  return status.code() == OH_ERR_CANCELLED && !usable().ok() ? usable() : status;
}

}  // namespace oh
