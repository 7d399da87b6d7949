// SPDX-License-Identifier: Apache-2.0
#include "path/direct/transfers.h"

#include <algorithm>
#include <cstring>

#include "base/fault.h"

namespace oh {
namespace {
constexpr size_t kPolledAtOnce = 8;
constexpr size_t kChunksAtOnce = 4;

// 64 bits wide, so that no cursor of a faulty peer wraps their sum.
constexpr uint64_t front_of(uint64_t cursor) { return static_cast<uint32_t>(cursor); }
constexpr uint64_t back_of(uint64_t cursor) { return cursor >> 32; }

uint64_t chunks_of(const Transfer& transfer) {
  return (transfer.length + transfer.chunk - 1) / transfer.chunk;
}

bool still_posted(const TransferSlot& slot, uint32_t sequence) {
  return slot.word.load(std::memory_order_acquire) == slot_word(sequence, SlotState::kPosted);
}
}  // namespace

void Transfers::start(ClaimListener* listener) {
  listener_ = listener;
  for (uint32_t index = kSlots; index-- > 0;) free_.push_back(index);
}

Transfer* Transfers::offer(Request* request, bool source) {
  if (free_.empty()) reclaim();
  if (free_.empty()) return nullptr;
  Transfer* transfer = pool_.acquire();
  transfer->index = free_.back();
  free_.pop_back();
  transfer->slot = &pair_.segment->outgoing().slots[transfer->index];
  transfer->sequence = ++sequence_[transfer->index];
  transfer->owner = true;
  transfer->source = source;
  transfer->local = request->data;
  transfer->length = request->size;
  transfer->request = request;
  request->transfer = transfer;

  TransferSlot& slot = *transfer->slot;
  slot.owner_address = reinterpret_cast<uint64_t>(request->data);
  slot.owner_length = request->size;
  describe(*request, request->size, &slot.owner_block, &slot.owner_memory);
  slot.mode.store(static_cast<uint32_t>(CopyMode::kUndecided), std::memory_order_relaxed);
  slot.cursor.store(0, std::memory_order_relaxed);
  slot.copied.store(0, std::memory_order_relaxed);
  slot.failure.store(0, std::memory_order_relaxed);
  slot.attended.store(request->attended, std::memory_order_relaxed);
  // release: pairs with the claimer's compare-and-swap.
  slot.word.store(slot_word(transfer->sequence, SlotState::kPosted), std::memory_order_release);
  posted_.push_back(transfer);
  return transfer;
}

bool Transfers::withdraw(Transfer* transfer, oh_status why) {
  if (!slot_advance(*transfer->slot, transfer->sequence, SlotState::kPosted, SlotState::kCancelled,
                    why)) {
    if (static_cast<ListNode<InPostedTransfers>*>(transfer)->linked()) activate(transfer);
    return false;
  }
  transfer->request->transfer = nullptr;
  posted_.erase(transfer);
  free_.push_back(transfer->index);
  pool_.release(transfer);
  return true;
}

// Where a request's buffer is, as a slot says it.
void Transfers::describe(const Request& request, uint64_t size, uint32_t* block, uint32_t* memory) {
  *memory = memory_of(request);
  if (!request.on_device) {
    *block = pair_.host->block_of(request.data, size);
  } else if (pair_.path != OH_PATH_LOCAL && (*memory & kSlotMappable)) {
    pair_.host->publish(request.device.exported);
    *block = request.device.exported->number;
  } else {
    *block = 0;
  }
}

bool Transfers::reachable(const Request& request, const Offer& offer) const {
  // With device memory on either side there always is a way: the relay, if nothing else.
  const TransferSlot& slot = pair_.segment->incoming().slots[offer.slot];
  if (request.on_device || (slot.owner_memory & kSlotDevice)) return true;
  std::shared_ptr<ImportedBlock> holder;
  return pair_.mover || pair_.mapped(offer.block, offer.remote, offer.length, &holder);
}

void Transfers::attend(Request* request, bool attended) {
  request->attended = attended;
  Transfer* transfer = request->transfer;
  if (transfer && transfer->owner) {
    transfer->slot->attended.store(attended, std::memory_order_relaxed);
  }
}

bool Transfers::prefers_stream(const Request& request, const Offer& offer) const {
  std::shared_ptr<ImportedBlock> holder;
  const TransferSlot& slot = pair_.segment->incoming().slots[offer.slot];
  if (!request.attended || !pair_.stream_when_attended || request.on_device ||
      (slot.owner_memory & kSlotDevice) ||
      pair_.mapped(offer.block, offer.remote, offer.length, &holder)) {
    return false;
  }
  return slot.attended.load(std::memory_order_relaxed) != 0;
}

bool Transfers::claim(Request* request, bool source, const Offer& offer) {
  TransferSlot& slot = pair_.segment->incoming().slots[offer.slot];
  // Claims are made under our lock: whoever sees the slot posted here is its only claimer. Without
  // the look, an offer that is over would spoil the fields of the slot's next use.
  if (!still_posted(slot, offer.sequence)) return false;
  slot.claimer_address = reinterpret_cast<uint64_t>(request->data);
  slot.claimer_length = offer.length;
  describe(*request, offer.length, &slot.claimer_block, &slot.claimer_memory);
  uint32_t owner_memory = slot.owner_memory;
  if (!slot_advance(slot, offer.sequence, SlotState::kPosted, SlotState::kClaimed)) return false;
  OH_FAULT_POINT("transfer.claimed");
  pair_.wake_them = true;
  Transfer* transfer = pool_.acquire();
  transfer->slot = &slot;
  transfer->index = offer.slot;
  transfer->sequence = offer.sequence;
  transfer->owner = false;
  transfer->source = source;
  transfer->local = request->data;
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

// Both sides know where the bytes are.
void Transfers::enter_active(Transfer* transfer) {
  transfer->on_device =
      transfer->request->on_device || (transfer->remote_memory & kSlotDevice) != 0;
  transfer->local_device = transfer->request->on_device;
  transfer->mode = CopyMode::kUndecided;
  transfer->stream = nullptr;
  transfer->flying = false;
  transfer->path = pair_.path;
  if (transfer->on_device) {
    transfer->chunk = 0;
    transfer->mapped = nullptr;
    ++device_active_;
    pair_.host->count_polled(1);
  } else {
    transfer->chunk = slot_chunk(transfer->length);
    transfer->mapped =
        pair_.mapped(transfer->remote_block, transfer->remote, transfer->length, &transfer->import);
  }
  active_.push_back(transfer);
}

bool Transfers::ended_with_link(const Offer& offer) const {
  uint64_t word = pair_.segment->incoming().slots[offer.slot].word.load(std::memory_order_acquire);
  return word == slot_word(offer.sequence, SlotState::kCancelled, OH_ERR_PEER_LOST);
}

bool Transfers::refuse(const Offer& offer, oh_status status) {
  TransferSlot& slot = pair_.segment->incoming().slots[offer.slot];
  if (!still_posted(slot, offer.sequence)) return false;
  // No bytes: the owner may see the claim before the end of it.
  slot.claimer_address = 0;
  slot.claimer_length = 0;
  slot.claimer_block = 0;
  slot.claimer_memory = 0;
  if (!slot_advance(slot, offer.sequence, SlotState::kPosted, SlotState::kClaimed)) return false;
  slot.released.store(offer.sequence, std::memory_order_relaxed);
  slot_advance(slot, offer.sequence, SlotState::kClaimed, SlotState::kDone, status);
  pair_.wake_them = true;
  return true;
}

// A slot of ours was claimed: the claimer's fields are valid now.
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

// Up to `most` next to each other, from either end; how many.
uint32_t Transfers::take_chunks(Transfer& transfer, bool from_back, uint32_t most, uint64_t* offset,
                                uint64_t* size) {
  uint64_t chunks = chunks_of(transfer);
  std::atomic<uint64_t>& cursor = transfer.slot->cursor;
  uint64_t now = cursor.load(std::memory_order_relaxed);
  while (front_of(now) + back_of(now) < chunks) {
    uint64_t count = std::min<uint64_t>(most, chunks - front_of(now) - back_of(now));
    uint64_t next = now + (from_back ? count << 32 : count);
    if (!cursor.compare_exchange_weak(now, next, std::memory_order_acq_rel)) continue;
    uint64_t first = from_back ? chunks - back_of(now) - count : front_of(now);
    *offset = first * transfer.chunk;
    *size = std::min(count * transfer.chunk, transfer.length - *offset);
    return static_cast<uint32_t>(count);
  }
  return 0;
}

bool Transfers::all_taken(const Transfer& transfer) {
  uint64_t now = transfer.slot->cursor.load(std::memory_order_relaxed);
  return front_of(now) + back_of(now) >= chunks_of(transfer);
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
  return transfer.source ? pair_.mover->write({&piece, 1}) : pair_.mover->read({&piece, 1});
}

// `chunks` more are through; true if they were the last and the slot is DONE now.
bool Transfers::account(Transfer& transfer, uint64_t chunks) {
  TransferSlot& slot = *transfer.slot;
  // acq_rel: whoever adds the last chunk has seen the writes of all others.
  uint64_t through = slot.copied.fetch_add(chunks, std::memory_order_acq_rel) + chunks;
  if (through != chunks_of(transfer)) return false;
  oh_status failure =
      status_from(-int64_t{slot.failure.load(std::memory_order_relaxed)}, OH_ERR_PROTOCOL);
  return slot_advance(slot, transfer.sequence, SlotState::kClaimed, SlotState::kDone, failure);
}

// The first failure of a transfer is the one that both sides hear.
void Transfers::fail(Transfer& transfer, const Status& status) {
  uint32_t none = 0;
  transfer.slot->failure.compare_exchange_strong(none, static_cast<uint32_t>(-status.code()));
  if (transfer.failure.ok()) transfer.failure = status;
}

// No chunk is handed out any more; those that were not count as through.
void Transfers::stop(Transfer* transfer, oh_status status) {
  TransferSlot& slot = *transfer->slot;
  uint32_t none = 0;
  slot.failure.compare_exchange_strong(none, static_cast<uint32_t>(-status));
  if (transfer->on_device) set_mode(*transfer, CopyMode::kEngineOfClaimer);
  uint64_t chunks = chunks_of(*transfer);
  uint64_t now = slot.cursor.load(std::memory_order_relaxed);
  while (front_of(now) + back_of(now) < chunks) {
    uint64_t rest = chunks - front_of(now) - back_of(now);
    uint64_t next = now + (rest << 32);
    if (!slot.cursor.compare_exchange_weak(now, next, std::memory_order_acq_rel)) continue;
    account(*transfer, rest);
    return;
  }
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
    any = work_on_devices(focus) || any;
    if (device_active_ == active_.size()) return any;
    focus = nullptr;  // it may have ended meanwhile
  }
  auto ours_to_copy = [&](Transfer* transfer) {
    return !transfer->on_device && (transfer->mapped || pair_.mover);
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
  without_lock(*chosen, [&] {
    uint64_t offset;
    uint64_t size;
    while (copied < kChunksAtOnce && failure.ok() && !pair_.gone.load(std::memory_order_relaxed) &&
           take_chunks(*chosen, /*from_back=*/chosen->source, 1, &offset, &size) > 0) {
      failure = copy_chunk(*chosen, offset, size);
      ++copied;
    }
    // A process that took over the number of the one we mean, or its next program: not its bytes.
    if (copied && failure.ok() && !chosen->mapped) failure = pair_.host->still_there();
    if (!failure.ok()) {
      uint32_t none = 0;
      chosen->slot->failure.compare_exchange_strong(none, static_cast<uint32_t>(-failure.code()));
    }
    if (copied) account(*chosen, copied);
  });
  if (copied) pair_.wake_them = true;
  if (!failure.ok()) {
    if (chosen->failure.ok()) chosen->failure = failure;
    stop(chosen, failure.code());
  }
  return settle(chosen) || copied > 0;
}

}  // namespace oh
