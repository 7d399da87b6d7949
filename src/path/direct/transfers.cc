// SPDX-License-Identifier: Apache-2.0
#include "path/direct/transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/fault.h"
#include "link/memory_exchange.h"

namespace oh {
namespace {
constexpr size_t kPolledAtOnce = 8;
constexpr size_t kChunksAtOnce = 4;
// How long the end of a link waits for an engine that copies. Bounded: an engine that waits for
// earlier work of the application may never finish.
constexpr int64_t kEngineTime = 5 * kMillisecond;
}  // namespace

void Transfers::start(ClaimListener* listener) {
  listener_ = listener;
  slots_.open(*link_.segment);
}

Transfer* Transfers::offer(Request* request, bool source) {
  if (!slots_.has_free()) return nullptr;
  const SlotBuffer buffer = describe(*request, request->size);
  const SlotTable::Posted posted = slots_.post(buffer, request->attended);
  Transfer* transfer = pool_.acquire();
  transfer->slot = posted.slot;
  transfer->index = posted.index;
  transfer->sequence = posted.sequence;
  transfer->owner = true;
  transfer->source = source;
  transfer->local = request->data;
  transfer->local_memory = buffer.memory;
  transfer->length = request->size;
  transfer->request = request;
  request->transfer = transfer;
  posted_.push_back(transfer);
  return transfer;
}

bool Transfers::withdraw(Transfer* transfer, oh_status why) {
  if (!static_cast<ListNode<InPostedTransfers>*>(transfer)->linked()) return false;
  if (!slots_.withdraw(transfer->index, why)) {
    activate(transfer);
    return false;
  }
  transfer->request->transfer = nullptr;
  posted_.erase(transfer);
  pool_.release(transfer);
  return true;
}

// Describes a request's buffer for a slot.
SlotBuffer Transfers::describe(const Request& request, uint64_t size) {
  SlotBuffer buffer{reinterpret_cast<uint64_t>(request.data), size, 0, 0};
  if (!request.on_device) buffer.block = link_.memory->block_of(request.data, size);
  buffer.memory = devices_.memory_of(request, buffer.block);
  if (!request.on_device) return buffer;
  if (link_.path != OH_PATH_LOCAL && (buffer.memory & kSlotMappable)) {
    link_.memory->publish(request.device.exported);
    buffer.block = request.device.exported->number;
  }
  return buffer;
}

bool Transfers::has_use(SlotUse use, const Request& request) const {
  if (use != SlotUse::kIfShared) return use != SlotUse::kNone;
  return link_.memory->block_of(request.data, request.size) != 0;
}

bool Transfers::copies(const Request& request, const Offer& offer) const {
  // Device memory on either side is always copied directly, by the relay if nothing else works.
  const TransferSlot& slot = link_.segment->incoming().slots[offer.slot];
  const uint32_t memory = slot.owner_memory.load(std::memory_order_relaxed);
  if (request.on_device || (memory & kSlotDevice)) return true;
  const bool attended = request.attended && slot.attended.load(std::memory_order_relaxed) != 0;
  const HostCopy copy = link_.selection->copies_host(attended);
  std::shared_ptr<ImportedBlock> holder;
  return copy == HostCopy::kAlways ||
         (copy == HostCopy::kIfMapped &&
          link_.mapped(offer.block, offer.remote, offer.length, &holder));
}

void Transfers::attend(Request* request, bool attended) {
  request->attended = attended;
  Transfer* transfer = request->transfer;
  if (transfer && transfer->owner) {
    transfer->slot->attended.store(attended, std::memory_order_relaxed);
  }
}

bool Transfers::claim(Request* request, bool source, const Offer& offer) {
  // Claims are made under the link's lock: a thread that sees the slot posted is its only claimer.
  if (!slots_.is_posted(offer)) return false;
  TransferSlot& slot = slots_.theirs(offer.slot);
  const uint32_t owner_memory = slot.owner_memory.load(std::memory_order_relaxed);
  const SlotBuffer buffer = describe(*request, offer.length);
  if (!slots_.claim(offer, buffer)) return false;
  OH_FAULT_POINT("transfer.claimed");
  link_.wake_them = true;
  Transfer* transfer = pool_.acquire();
  transfer->slot = &slot;
  transfer->index = offer.slot;
  transfer->sequence = offer.sequence;
  transfer->owner = false;
  transfer->source = source;
  transfer->local = request->data;
  transfer->local_memory = buffer.memory;
  transfer->remote = offer.remote;
  transfer->length = offer.length;
  transfer->remote_memory = owner_memory;
  transfer->remote_block = offer.block;
  transfer->request = request;
  request->transfer = transfer;
  request->phase = Phase::kDirect;
  request->expected = offer.length;
  enter_active(transfer);
  return true;
}

// Activates a transfer whose two buffers are known.
void Transfers::enter_active(Transfer* transfer) {
  transfer->on_device =
      transfer->request->on_device || (transfer->remote_memory & kSlotDevice) != 0;
  transfer->local_device = transfer->request->on_device;
  transfer->mode = CopyMode::kUndecided;
  transfer->stream = nullptr;
  transfer->engine_copies = transfer->awaited = false;
  transfer->path = link_.path;
  transfer->within_process = link_.path == OH_PATH_LOCAL;
  if (transfer->on_device) {
    transfer->chunk = 0;
    transfer->mapped = nullptr;
    ++device_active_;
    link_.count_polled(1);
  } else {
    transfer->chunk = slot_chunk(transfer->length);
    transfer->mapped =
        link_.mapped(transfer->remote_block, transfer->remote, transfer->length, &transfer->import);
  }
  active_.push_back(transfer);
}

bool Transfers::refuse(const Offer& offer, oh_status status) {
  if (!slots_.refuse(offer, status)) return false;
  link_.wake_them = true;
  return true;
}

// Activates the transfer of a local slot that was claimed: the claimer's fields are valid now.
void Transfers::activate(Transfer* transfer) {
  posted_.erase(transfer);
  const TransferSlot& slot = *transfer->slot;
  transfer->remote = slot.claimer_address;
  // The shorter of the two: a receive may have room for more than was sent.
  transfer->length = std::min(transfer->request->size, slot.claimer_length);
  transfer->remote_memory = slot.claimer_memory;
  transfer->remote_block = slot.claimer_block;
  enter_active(transfer);
  Request* request = transfer->request;
  request->phase = Phase::kDirect;
  request->expected = transfer->length;
  if (request->kind == OpKind::kRecv) listener_->on_claimed(request);
}

bool Transfers::claimed(Transfer* transfer) {
  if (!static_cast<ListNode<InPostedTransfers>*>(transfer)->linked()) return true;
  // acquire: pairs with the claimer's compare-and-swap.
  uint64_t word = transfer->slot->word.load(std::memory_order_acquire);
  if (slot_state(word) == SlotState::kPosted) return false;
  activate(transfer);
  return true;
}

bool Transfers::poll(Transfer* focus) {
  bool any = false;
  if (focus && static_cast<ListNode<InPostedTransfers>*>(focus)->linked()) any = claimed(focus);
  for (size_t i = std::min(posted_.size(), kPolledAtOnce); i-- > 0 && !posted_.empty();) {
    Transfer* transfer = posted_.pop_front();
    posted_.push_back(transfer);
    any = claimed(transfer) || any;
  }
  return any;
}

Status Transfers::copy_chunk(Transfer& transfer, uint64_t offset, uint64_t size) {
  OH_FAULT_POINT("transfer.copy");
  uint8_t* local = transfer.local + offset;
  if (transfer.mapped) {
    uint8_t* mapped = transfer.mapped + offset;
    std::memcpy(transfer.source ? mapped : local, transfer.source ? local : mapped, size);
    return {};
  }
  CopyPiece piece{local, transfer.remote + offset, size};
  return transfer.source ? link_.mover->write({&piece, 1}) : link_.mover->read({&piece, 1});
}

bool Transfers::work(Transfer* focus) {
  bool any = false;
  for (Transfer* transfer = active_.front(); transfer;) {
    Transfer* next = active_.next(transfer);
    if (settle(transfer)) {
      any = true;
      if (transfer == focus) focus = nullptr;
    }
    transfer = next;
  }
  if (device_active_ > 0) {
    any = devices_.work(active_, focus) || any;
    if (device_active_ == active_.size()) return any;
    focus = nullptr;  // it may have ended meanwhile
  }
  auto ours_to_copy = [&](Transfer* transfer) {
    return !transfer->on_device && (transfer->mapped || link_.mover);
  };
  Transfer* chosen = active_.front();
  while (chosen && !ours_to_copy(chosen)) chosen = active_.next(chosen);
  if (focus && static_cast<ListNode<InActiveTransfers>*>(focus)->linked() && ours_to_copy(focus)) {
    chosen = focus;
  }
  return chosen ? copy_some(chosen) || any : any;
}

bool Transfers::copy_some(Transfer* chosen) {
  active_.erase(chosen);
  active_.push_back(chosen);
  size_t copied = 0;
  Status failure;
  without_lock(link_, *chosen, [&] {
    uint64_t offset;
    uint64_t size;
    while (copied < kChunksAtOnce && failure.ok() && !link_.gone.load(std::memory_order_relaxed) &&
           chosen->take_chunks(/*from_back=*/chosen->source, 1, &offset, &size) > 0) {
      failure = copy_chunk(*chosen, offset, size);
      ++copied;
    }
    // The bytes are not the peer's if another process has reused its pid, or the peer has called
    // exec.
    if (copied && failure.ok() && !chosen->mapped) failure = link_.still_there();
    if (!failure.ok()) {
      uint32_t none = 0;
      chosen->slot->failure.compare_exchange_strong(none, static_cast<uint32_t>(-failure.code()));
    }
    if (copied) chosen->account(copied);
  });
  if (copied) link_.wake_them = true;
  if (!failure.ok()) {
    if (chosen->failure.ok()) chosen->failure = failure;
    chosen->stop(failure.code());
  }
  return settle(chosen) || copied > 0;
}

Transfer* Transfers::sink_of(const PipeSpan& span) {
  if (span.slot >= kSlots) return nullptr;
  // The span's producer is the peer: slots that the producer owns lie in the incoming half.
  SegmentDirection& half = span.from_owner ? link_.segment->incoming() : link_.segment->outgoing();
  const TransferSlot* slot = &half.slots[span.slot];
  auto is_it = [&](const Transfer* transfer) {
    return transfer->slot == slot && transfer->sequence == span.sequence && !transfer->source &&
           transfer->owner != (span.from_owner != 0);
  };
  // The claim of a posted slot may not have been noticed yet.
  for (Transfer* posted = posted_.front(); posted; posted = posted_.next(posted)) {
    if (!is_it(posted)) continue;
    if (!claimed(posted)) return nullptr;
    break;
  }
  for (Transfer* transfer = active_.front(); transfer; transfer = active_.next(transfer)) {
    if (!is_it(transfer)) continue;
    // Transfers between host buffers use no pipe, and other threads may be copying this one now.
    if (!transfer->on_device) return nullptr;
    transfer->learn();  // the source may have fallen back to the relay
    const bool has_part =
        transfer->mode != CopyMode::kStaged || (transfer->local_device && link_.device->has_slab());
    bool fits = transfer->by_pipe() && has_part && span.offset % transfer->chunk == 0 &&
                span.offset <= transfer->length && span.bytes <= transfer->length - span.offset &&
                (span.bytes + transfer->chunk - 1) / transfer->chunk == span.lines;
    return fits ? transfer : nullptr;
  }
  return nullptr;
}

// ---- Ends -------------------------------------------------------------------------------------

bool Transfers::settle(Transfer* transfer) {
  // acquire: pairs with account() on either side; the bytes are visible.
  uint64_t word = transfer->slot->word.load(std::memory_order_acquire);
  if (slot_state(word) != SlotState::kDone || transfer->copiers > 0) return false;
  // All filled lines have been drained by now: only the local count lags.
  if (transfer->lines > 0) devices_.retire();
  if (transfer->lines > 0) return false;
  oh_status code = slot_status(word);
  if (code == OH_OK) {
    finish(transfer, {});
  } else if (!transfer->failure.ok()) {
    finish(transfer, transfer->failure);
  } else {
    // A slot that is refused was claimed with a length of 0.
    const bool refused = transfer->length == 0 && transfer->request;
    const uint64_t length = refused ? transfer->request->size : transfer->length;
    finish(transfer, error(code, "%s ended the %s of %llu bytes: %s", link_.name.c_str(),
                           code == OH_ERR_PEER_LOST ? "link during the transfer" : "transfer",
                           static_cast<unsigned long long>(length), status_text(code)));
  }
  return true;
}

void Transfers::finish(Transfer* transfer, Status status) {
  active_.erase(transfer);
  if (transfer->on_device) {
    transfer->let_streams_pass();
    transfer->learn();  // it may have ended before this side read its mode
    if (transfer->slot->word.load(std::memory_order_relaxed) & kSlotByWorker) {
      transfer->path = OH_PATH_WORKER;
    }
    --device_active_;
    link_.count_polled(-1);
    if (transfer->stream) link_.device->give_stream(std::exchange(transfer->stream, nullptr));
    transfer->engine_copies = false;
  }
  if (Request* request = transfer->request) {
    request->path = transfer->path;
    if (status.ok()) {
      request->nbytes = transfer->length;
      const MetricOp op = transfer->source ? MetricOp::kSend : MetricOp::kRecv;
      if (!request->internal) link_.stats.count(op, transfer->path, transfer->length);
    }
    link_.finish(*request, std::move(status));
  }
  if (transfer->owner) {
    slots_.end(transfer->index);
  } else {
    // release: this side uses the slot no more; pairs with SlotTable::reclaim().
    transfer->slot->released.store(transfer->sequence, std::memory_order_release);
    // A send of the peer from a device may wait for a free slot.
    if (transfer->on_device) link_.wake_them = true;
  }
  transfer->import.reset();
  transfer->mapped = nullptr;
  transfer->failure = {};
  pool_.release(transfer);
}

bool Transfers::abandon(Transfer* transfer, const Status& status) {
  if (transfer->failure.ok()) transfer->failure = status;
  transfer->stop(status.code());
  link_.wake_them = true;
  return settle(transfer);
}

bool Transfers::end(Transfer* transfer, const Status& status, bool give_up) {
  if (abandon(transfer, status)) return true;
  if (!give_up || transfer->copiers > 0) return false;
  Request& request = *transfer->request;
  orphan(transfer);
  link_.finish(request, error(OH_ERR_IN_DOUBT,
                              "%s; %s has begun to copy and may still touch the buffer: keep it "
                              "until buffer_released()",
                              status.text().c_str(), link_.name.c_str()));
  return true;
}

// The slot and its sequence show later whether the buffer is still in use.
void Transfers::orphan(Transfer* transfer) {
  transfer->let_streams_pass();
  transfer->request->doubt_peer = link_.keep_alive();
  transfer->request->doubts.push_back({transfer->slot, transfer->sequence});
  transfer->request->transfer = nullptr;
  transfer->request = nullptr;
}

bool Transfers::is_enqueued(const Transfer& transfer) const {
  const bool active = static_cast<const ListNode<InActiveTransfers>&>(transfer).linked();
  return active && transfer.on_device && devices_.is_enqueued(transfer);
}

bool Transfers::is_over(const Transfer& transfer, bool peer_is_dead) const {
  if (transfer.copiers > 0 || (transfer.with_engine() && broken().ok())) return false;
  // In a pipe transfer the peer never accesses the local buffer.
  if (transfer.by_pipe()) return link_.gone.load(std::memory_order_relaxed);
  // The peer's threads have stopped when it says goodbye; its engine stops with its process.
  return peer_is_dead && (!transfer.on_device || link_.process_is_dead());
}

bool Transfers::released(const std::vector<Doubt>& doubts) {
  // A dead process writes no more.
  const bool dead = link_.peer_is_dead();
  return std::ranges::all_of(doubts, [&](const Doubt& doubt) {
    if (doubt.staged) return doubt.staged->is_quiet();
    return doubt.in_flight ? doubt.in_flight->is_over() : released(doubt, dead);
  });
}

bool Transfers::released(const Doubt& doubt, bool peer_is_dead) {
  devices_.retire();
  uint64_t word = doubt.slot->word.load(std::memory_order_acquire);
  if (slot_sequence(word) != doubt.sequence || slot_state(word) == SlotState::kDone) return true;
  for (Transfer* transfer = active_.front(); transfer; transfer = active_.next(transfer)) {
    if (transfer->slot != doubt.slot || transfer->sequence != doubt.sequence) continue;
    return is_over(*transfer, peer_is_dead);
  }
  return true;
}

bool Transfers::left_to_engine(const Transfer& transfer) const {
  if (transfer.request || !transfer.on_device) return false;
  // Of a pipe's lines, DONE does not tell whether the local engine has read them.
  if (transfer.lines > 0) return broken().ok();
  const uint64_t word = transfer.slot->word.load(std::memory_order_acquire);
  if (slot_sequence(word) != transfer.sequence || slot_state(word) == SlotState::kDone) {
    return false;
  }
  if (transfer.with_engine()) return broken().ok();
  // In a pipe transfer the peer never accesses the local buffer.
  return !transfer.by_pipe() && !is_over(transfer, link_.peer_is_dead());
}

bool Transfers::left_to_engines() {
  devices_.retire();
  for (Transfer* transfer = active_.front(); transfer; transfer = active_.next(transfer)) {
    if (left_to_engine(*transfer)) return true;
  }
  return false;
}

bool Transfers::engine_within(const uint8_t* base, uint64_t length) {
  devices_.retire();
  for (Transfer* transfer = active_.front(); transfer; transfer = active_.next(transfer)) {
    bool apart = transfer->local >= base + length || transfer->local + transfer->length <= base;
    if (!apart && left_to_engine(*transfer)) return true;
  }
  return false;
}

bool Transfers::settle_rest() {
  if (active_.empty() || left_) return false;
  devices_.retire(active_);
  bool any = false;
  for (Transfer* transfer = active_.front(); transfer;) {
    Transfer* next = active_.next(transfer);
    if (settle(transfer)) {
      any = true;
    } else if (!transfer->request && is_over(*transfer, link_.process_is_dead())) {
      finish(transfer, {});
      any = true;
    } else if (!transfer->request && transfer->engine_copies &&
               now_ns() - transfer->looked > kEngineTime) {
      return devices_.check(*transfer) || any;  // releases the lock
    }
    transfer = next;
  }
  return any;
}

void Transfers::leave_rest() {
  left_ = true;
  if (device_active_ == 0) return;
  link_.count_polled(-static_cast<int>(device_active_));
  device_active_ = 0;
  for (Transfer* transfer = active_.front(); transfer; transfer = active_.next(transfer)) {
    // Only our engine copies after the link's end, so this endpoint has one.
    if (transfer->on_device && transfer->import) link_.device->keep(transfer->import);
  }
}

bool Transfers::fail_all(const Status& status, bool peer_is_dead) {
  // A slot that was claimed meanwhile becomes active.
  while (Transfer* transfer = posted_.front()) withdraw(transfer, OH_ERR_PEER_LOST);
  bool copying = false;
  devices_.retire(active_);
  for (Transfer* transfer = active_.front(); transfer;) {
    Transfer* next = active_.next(transfer);
    if (transfer->failure.ok()) transfer->failure = status;
    transfer->stop(OH_ERR_PEER_LOST);  // the peer sees a lost link, whatever the reason
    if (!settle(transfer)) {
      Request* request = transfer->request;
      bool recent = transfer->with_engine() && now_ns() - transfer->looked < kEngineTime;
      if (transfer->copiers > 0 || recent) {
        copying = true;
      } else if (is_over(*transfer, peer_is_dead)) {
        finish(transfer, status);  // the missing chunks were the peer's, which no longer copies
      } else if (request) {
        orphan(transfer);
        link_.finish(*request, error(OH_ERR_IN_DOUBT, "%s; %s may still touch the buffer",
                                     status.text().c_str(), link_.name.c_str()));
      }
    }
    transfer = next;
  }
  return !copying;
}

}  // namespace oh
