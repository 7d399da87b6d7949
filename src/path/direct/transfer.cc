// SPDX-License-Identifier: Apache-2.0
#include "path/direct/transfer.h"

#include <algorithm>

namespace oh {
namespace {
// 64 bits wide, so that a faulty peer's cursor cannot overflow their sum.
constexpr uint64_t front_of(uint64_t cursor) { return static_cast<uint32_t>(cursor); }
constexpr uint64_t back_of(uint64_t cursor) { return cursor >> 32; }
}  // namespace

uint32_t Transfer::take_chunks(bool from_back, uint32_t most, uint64_t* offset, uint64_t* size) {
  const uint64_t all = chunks();
  std::atomic<uint64_t>& cursor = slot->cursor;
  uint64_t now = cursor.load(std::memory_order_relaxed);
  while (front_of(now) + back_of(now) < all) {
    const uint64_t count = std::min<uint64_t>(most, all - front_of(now) - back_of(now));
    const uint64_t next = now + (from_back ? count << 32 : count);
    if (!cursor.compare_exchange_weak(now, next, std::memory_order_acq_rel)) continue;
    const uint64_t first = from_back ? all - back_of(now) - count : front_of(now);
    *offset = first * chunk;
    *size = std::min(count * chunk, length - *offset);
    return static_cast<uint32_t>(count);
  }
  return 0;
}

bool Transfer::all_taken() const {
  const uint64_t now = slot->cursor.load(std::memory_order_relaxed);
  return front_of(now) + back_of(now) >= chunks();
}

bool Transfer::account(uint64_t count) {
  // acq_rel: the thread that adds the last chunk has seen the writes of all others.
  const uint64_t through = slot->copied.fetch_add(count, std::memory_order_acq_rel) + count;
  if (through != chunks()) return false;
  const oh_status code =
      status_from(-int64_t{slot->failure.load(std::memory_order_relaxed)}, OH_ERR_PROTOCOL);
  return slot_advance(*slot, sequence, SlotState::kClaimed, SlotState::kDone, code);
}

void Transfer::fail(const Status& status) {
  uint32_t none = 0;
  slot->failure.compare_exchange_strong(none, static_cast<uint32_t>(-status.code()));
  if (failure.ok()) failure = status;
}

void Transfer::stop(oh_status status) {
  uint32_t none = 0;
  slot->failure.compare_exchange_strong(none, static_cast<uint32_t>(-status));
  if (on_device) set_mode(CopyMode::kEngineOfClaimer);
  const uint64_t all = chunks();
  uint64_t now = slot->cursor.load(std::memory_order_relaxed);
  while (front_of(now) + back_of(now) < all) {
    const uint64_t rest = all - front_of(now) - back_of(now);
    const uint64_t next = now + (rest << 32);
    if (!slot->cursor.compare_exchange_weak(now, next, std::memory_order_acq_rel)) continue;
    account(rest);
    return;
  }
}

void Transfer::learn() {
  // acquire: pairs with the claimer's compare-and-swap.
  take_mode(static_cast<CopyMode>(slot->mode.load(std::memory_order_acquire)));
}

void Transfer::take_mode(CopyMode said) {
  if (said == CopyMode::kUndecided) return;
  mode = said <= CopyMode::kStaged ? said : CopyMode::kEngineOfClaimer;
  if (mode == CopyMode::kStaged) {
    chunk = kSlabChunk;
    path = OH_PATH_STAGED;
  } else if (mode == CopyMode::kRelay) {
    chunk = kPipeChunk;
    path = OH_PATH_RELAY;
  } else {
    chunk = std::max<uint64_t>(length, 1);
    path = within_process ? OH_PATH_LOCAL : OH_PATH_CUDA_IPC;
  }
}

void Transfer::set_mode(CopyMode wanted) {
  auto found = static_cast<uint32_t>(CopyMode::kUndecided);
  const bool first = slot->mode.compare_exchange_strong(found, static_cast<uint32_t>(wanted),
                                                        std::memory_order_acq_rel);
  // The word is not read again: a faulty peer may have reset it.
  take_mode(first ? wanted : static_cast<CopyMode>(found));
}

}  // namespace oh
