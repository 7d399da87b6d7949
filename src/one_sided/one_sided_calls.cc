// SPDX-License-Identifier: Apache-2.0
#include "one_sided/one_sided_calls.h"

#include "path/message_selection.h"

namespace oh {

Status OneSidedCalls::move(Request* request, const Move& move) {
  const uint64_t bytes = move.bytes();
  if (!request->internal && bytes > 0 && link_.is_timed(bytes)) request->began = now_ns();
  link_.note_post(*request);
  Status status = one_sided_.move(request, move);
  if (!status.ok()) return status;
  if (move.list) {
    uint64_t blocks = 0;
    for (const MovePart& part : move.parts) blocks += part.count;
    const MetricOp op = move.put ? MetricOp::kPut : MetricOp::kGet;
    g_metrics.batch_blocks[static_cast<size_t>(op)].observe(blocks);
  }
  // Only a batch over several regions that was copied by this call is not yet observed. acquire in
  // ended(): another thread may have completed the request.
  if (!request->ended()) return {};
  if (request->began) link_.observe(*request, now_ns());
  if (request->posted_at) link_.note_end(*request);
  return {};
}

Status OneSidedCalls::post_notification(Request* request, ByteView bytes) {
  link_.note_post(*request);
  LinkGuard guard(link_);
  OH_RETURN_IF_ERROR(link_.usable());
  request->peer = link_.peer;
  one_sided_.post_notification(request, bytes);
  link_.posted();
  return {};
}

void OneSidedCalls::notification_collected(size_t bytes) {
  LinkGuard guard(link_);
  if (!link_.usable().ok()) return;
  one_sided_.give_back(bytes);
  link_.posted();
}

Status OneSidedCalls::signal(uint32_t slot, uint64_t count) {
  LinkGuard guard(link_);
  OH_RETURN_IF_ERROR(link_.usable());
  one_sided_.signal(slot, count);
  link_.posted();
  return {};
}

bool OneSidedCalls::take_signals(uint32_t slot, uint64_t count) {
  LinkGuard guard(link_);
  return one_sided_.signals().take(slot, count);
}

bool OneSidedCalls::has_signals(uint32_t slot, uint64_t count) {
  LinkGuard guard(link_);
  return one_sided_.signals().waiting(slot) >= count;
}

void OneSidedCalls::attach_key(const RemoteTarget& target) {
  LinkGuard guard(link_);
  if (!rma_ || target.on_device || !link_.usable().ok()) return;
  rma_->keys().attach(target.index, target.version);
  link_.posted();
}

void OneSidedCalls::detach_key(const RemoteTarget& target) {
  LinkGuard guard(link_);
  if (!rma_) return;
  rma_->keys().detach(target.version);
  link_.posted();
}

bool OneSidedCalls::map_for_keys() {
  std::shared_ptr<RegionRecord> region = rma_->keys().next_to_map();
  if (!region) return false;
  Result<std::shared_ptr<UcxMapping>> mapping =
      link_.without_lock([&] { return map_region(*region, link_.ucx->worker().context()); });
  const bool valid = regions_.find(region->index, region->version) != nullptr;
  rma_->keys().mapped(region, valid, std::move(mapping));
  return true;
}

void OneSidedCalls::retire_region(const RegionRecord& region) {
  LinkGuard guard(link_);
  one_sided_.retire(region);
  link_.posted();
}

Status OneSidedCalls::wait_until_retired(const RegionRecord& region, Deadline deadline,
                                         const std::function<int64_t()>& silent_for) {
  bool left = false;
  while (true) {
    // Check at least once, even if the deadline has passed.
    const bool last = deadline.passed();
    if (link_.ucx) link_.ucx->worker().progress();
    auto look = [&] {
      LinkGuard guard(link_);
      return one_sided_.leave(region);
    };
    left = look() || (link_.make_progress() && look());
    if (left || last) break;
    sched_yield();
  }
  if (left && wait_until_outside(deadline, is_open_to_engines(region))) return {};
  return timed_out(deadline.length(),
                   "%s is still inside a one-sided operation: the region's memory must not be "
                   "given away yet (no answer from it for %.3f s)",
                   link_.name.c_str(), static_cast<double>(silent_for()) / 1e9);
}

bool OneSidedCalls::is_open_to_engines(const RegionRecord& region) const {
  return region.exported || (region.block && link_.selection->opens_blocks());
}

// Precondition: the control page shows that the region is retired, or the segment shows that the
// link has ended. Operations that checked before hold the former access phase; new ones enter the
// next phase and see the change.
bool OneSidedCalls::wait_until_outside(Deadline deadline, bool by_engines) {
  if (!link_.segment) return wait_until_left(deadline);
  SegmentDirection& direction = link_.segment->incoming();
  std::atomic<uint64_t>& phase = direction.access_phase.phase;
  auto empty = [&](uint64_t of) {
    return direction.access.active[of & 1].load(std::memory_order_seq_cst) == 0;
  };
  // The phase advances only when the phase before it is empty: an earlier wait that timed out may
  // have left an operation there.
  uint64_t former = phase.load(std::memory_order_seq_cst);
  bool moved = false;
  auto through = [&] {
    if (!moved && empty(former + 1)) moved = phase.compare_exchange_strong(former, former + 1);
    // If the phase is two further, another thread has seen the former one empty.
    return moved && (empty(former) || phase.load(std::memory_order_seq_cst) > former + 1);
  };
  while (!through()) {
    // A dead process writes no more; one that said goodbye had finished its operations before.
    if (by_engines ? link_.process_is_dead() : link_.peer_is_dead()) return true;
    if (deadline.passed()) return false;
    if (!moved) former = phase.load(std::memory_order_seq_cst);
    sched_yield();
  }
  return true;
}

// Staged operations are tracked locally: copies of the local engine, and buffers that the channel
// still sends.
bool OneSidedCalls::wait_until_left(Deadline deadline) {
  while (true) {
    if (link_.ucx) link_.ucx->worker().progress();
    {
      LinkGuard guard(link_);
      if (one_sided_.all_have_left()) return true;
    }
    if (deadline.passed()) return false;
    sched_yield();
  }
}

}  // namespace oh
