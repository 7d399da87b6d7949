// SPDX-License-Identifier: Apache-2.0
//
// How transfers end: when the slot says so, at a deadline, and with the link.
#include <utility>

#include "base/clock.h"
#include "path/direct/transfers.h"

namespace oh {
namespace {
// How long the end of a link waits for an engine that copies; one that waits for earlier work of
// the application may take for ever.
constexpr int64_t kEngineTime = 5 * kMillisecond;
}  // namespace

bool Transfers::settle(Transfer* transfer) {
  // acquire: pairs with account() on either side; the bytes are visible.
  uint64_t word = transfer->slot->word.load(std::memory_order_acquire);
  if (slot_state(word) != SlotState::kDone || transfer->copiers > 0) return false;
  // Lines that were filled have been drained by now: only their count is behind.
  if (transfer->lines > 0) retire_spans();
  if (transfer->lines > 0) return false;
  oh_status code = slot_status(word);
  if (code == OH_OK) {
    finish(transfer, {});
  } else if (!transfer->failure.ok()) {
    finish(transfer, transfer->failure);
  } else {
    finish(transfer, error(code, "%s ended the %s of %llu bytes: %s", pair_.name.c_str(),
                           code == OH_ERR_PEER_LOST ? "link during the transfer" : "transfer",
                           static_cast<unsigned long long>(transfer->length), status_text(code)));
  }
  return true;
}

void Transfers::finish(Transfer* transfer, Status status) {
  active_.erase(transfer);
  if (transfer->on_device) {
    learn(*transfer);  // it may be over before we looked how it is done
    if (transfer->slot->word.load(std::memory_order_relaxed) & kSlotByWorker) {
      transfer->path = OH_PATH_WORKER;
    }
    --device_active_;
    pair_.host->count_polled(-1);
    if (transfer->stream) pair_.device->give_stream(std::exchange(transfer->stream, nullptr));
    transfer->flying = false;
  }
  if (Request* request = transfer->request) {
    request->path = transfer->path;
    if (status.ok()) {
      request->nbytes = transfer->length;
      transfer->source ? pair_.stats.count_sent(transfer->path, transfer->length)
                       : pair_.stats.count_received(transfer->path, transfer->length);
    }
    pair_.finish(*request, std::move(status));
  }
  if (transfer->owner) {
    lingering_.push_back(transfer->index);
  } else {
    // release: we are through with the slot (pairs with reclaim()).
    transfer->slot->released.store(transfer->sequence, std::memory_order_release);
    // A send from a device may wait for the slot.
    if (transfer->on_device) pair_.wake_them = true;
  }
  transfer->import.reset();
  transfer->mapped = nullptr;
  transfer->failure = {};
  pool_.release(transfer);
}

void Transfers::reclaim() {
  SegmentDirection& mine = pair_.segment->outgoing();
  std::erase_if(lingering_, [&](uint32_t index) {
    if (mine.slots[index].released.load(std::memory_order_acquire) != sequence_[index])
      return false;
    free_.push_back(index);
    return true;
  });
}

bool Transfers::abandon(Transfer* transfer, const Status& status) {
  if (transfer->failure.ok()) transfer->failure = status;
  stop(transfer, status.code());
  pair_.wake_them = true;
  return settle(transfer);
}

// The slot and its sequence tell whether the buffer is free, once the request has let go.
void Transfers::orphan(Transfer* transfer) {
  transfer->request->doubt_peer = pair_.host->keep_alive();
  transfer->request->doubts.push_back({transfer->slot, transfer->sequence});
  transfer->request->transfer = nullptr;
  transfer->request = nullptr;
}

bool Transfers::is_over(const Transfer& transfer, bool peer_is_dead) const {
  if (transfer.copiers > 0 || (with_engine(transfer) && broken().ok())) return false;
  // What goes through a pipe: the other side has never known where our buffer is.
  if (by_pipe(transfer)) return pair_.gone.load(std::memory_order_relaxed);
  // Its threads have stopped when it says goodbye; its engine stops with its process.
  return peer_is_dead && (!transfer.on_device || pair_.host->process_is_dead());
}

bool Transfers::released(const Doubt& doubt, bool peer_is_dead) {
  retire_spans();
  uint64_t word = doubt.slot->word.load(std::memory_order_acquire);
  if (slot_sequence(word) != doubt.sequence || slot_state(word) == SlotState::kDone) return true;
  for (Transfer* transfer = active_.front(); transfer; transfer = active_.next(transfer)) {
    if (transfer->slot != doubt.slot || transfer->sequence != doubt.sequence) continue;
    return is_over(*transfer, peer_is_dead);
  }
  return true;
}

bool Transfers::engine_within(const uint8_t* base, uint64_t length) const {
  for (Transfer* transfer = active_.front(); transfer; transfer = active_.next(transfer)) {
    bool apart = transfer->local >= base + length || transfer->local + transfer->length <= base;
    if (!transfer->request && !apart && with_engine(*transfer) && broken().ok()) return true;
  }
  return false;
}

bool Transfers::settle_rest() {
  if (active_.empty() || left_) return false;
  if (!broken().ok()) {
    give_up_on_device();
  } else {
    retire_spans();
  }
  bool any = false;
  for (Transfer* transfer = active_.front(); transfer;) {
    Transfer* next = active_.next(transfer);
    if (settle(transfer)) {
      any = true;
    } else if (!transfer->request && is_over(*transfer, pair_.host->process_is_dead())) {
      finish(transfer, {});
      any = true;
    } else if (!transfer->request && transfer->flying &&
               now_ns() - transfer->looked > kEngineTime) {
      return check(*transfer) || any;  // lets the lock go
    }
    transfer = next;
  }
  return any;
}

void Transfers::leave_rest() {
  left_ = true;
  if (device_active_ == 0) return;
  pair_.host->count_polled(-static_cast<int>(device_active_));
  device_active_ = 0;
  for (Transfer* transfer = active_.front(); transfer; transfer = active_.next(transfer)) {
    if (transfer->import) pair_.device->keep(transfer->import);
  }
}

bool Transfers::fail_all(const Status& status, bool peer_is_dead) {
  // What was claimed meanwhile is active then.
  while (Transfer* transfer = posted_.front()) withdraw(transfer, OH_ERR_PEER_LOST);
  bool copying = false;
  if (!broken().ok()) {
    give_up_on_device();
  } else {
    retire_spans();
  }
  for (Transfer* transfer = active_.front(); transfer;) {
    Transfer* next = active_.next(transfer);
    if (transfer->failure.ok()) transfer->failure = status;
    stop(transfer, OH_ERR_PEER_LOST);  // to the other side the link is lost, for whatever reason
    if (!settle(transfer)) {
      Request* request = transfer->request;
      bool recent = with_engine(*transfer) && now_ns() - transfer->looked < kEngineTime;
      if (transfer->copiers > 0 || recent) {
        copying = true;
      } else if (is_over(*transfer, peer_is_dead)) {
        finish(transfer, status);  // what is missing was the peer's, who does not come to it
      } else if (request) {
        orphan(transfer);
        pair_.finish(*request, error(OH_ERR_IN_DOUBT, "%s; %s may still touch the buffer",
                                     status.text().c_str(), pair_.name.c_str()));
      }
    }
    transfer = next;
  }
  return !copying;
}

}  // namespace oh
