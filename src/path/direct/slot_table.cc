// SPDX-License-Identifier: Apache-2.0
#include "path/direct/slot_table.h"

namespace oh {

void SlotTable::open(Segment& segment) {
  segment_ = &segment;
  for (uint32_t index = kSlots; index-- > 0;) free_.push_back(index);
}

bool SlotTable::has_free() {
  if (free_.empty()) reclaim();
  return !free_.empty();
}

SlotTable::Posted SlotTable::post(const SlotBuffer& buffer, bool attended) {
  if (!has_free()) return {};
  const uint32_t index = free_.back();
  free_.pop_back();
  const uint32_t sequence = ++sequence_[index];
  TransferSlot& slot = segment_->outgoing().slots[index];
  slot.owner_address.store(buffer.address, std::memory_order_relaxed);
  slot.owner_length = buffer.length;
  slot.owner_block.store(buffer.block, std::memory_order_relaxed);
  slot.owner_memory.store(buffer.memory, std::memory_order_relaxed);
  slot.mode.store(static_cast<uint32_t>(CopyMode::kUndecided), std::memory_order_relaxed);
  slot.cursor.store(0, std::memory_order_relaxed);
  slot.copied.store(0, std::memory_order_relaxed);
  slot.failure.store(0, std::memory_order_relaxed);
  slot.enqueued.store(sequence - 1, std::memory_order_relaxed);
  slot.attended.store(attended, std::memory_order_relaxed);
  // release: pairs with the claimer's compare-and-swap.
  slot.word.store(slot_word(sequence, SlotState::kPosted), std::memory_order_release);
  return {&slot, index, sequence};
}

bool SlotTable::withdraw(uint32_t index, oh_status why) {
  if (!slot_advance(segment_->outgoing().slots[index], sequence_[index], SlotState::kPosted,
                    SlotState::kCancelled, why)) {
    return false;
  }
  free_.push_back(index);
  return true;
}

void SlotTable::reclaim() {
  SegmentDirection& mine = segment_->outgoing();
  std::erase_if(lingering_, [&](uint32_t index) {
    // acquire: pairs with the peer's release of the slot.
    if (mine.slots[index].released.load(std::memory_order_acquire) != sequence_[index]) {
      return false;
    }
    free_.push_back(index);
    return true;
  });
}

bool SlotTable::claim(const SlotOffer& offer, const SlotBuffer& buffer) {
  TransferSlot& slot = theirs(offer.slot);
  slot.claimer_address = buffer.address;
  slot.claimer_length = buffer.length;
  slot.claimer_block = buffer.block;
  slot.claimer_memory = buffer.memory;
  return slot_advance(slot, offer.sequence, SlotState::kPosted, SlotState::kClaimed);
}

bool SlotTable::refuse(const SlotOffer& offer, oh_status status) {
  // With a length of 0: the owner may see CLAIMED before DONE.
  if (!is_posted(offer) || !claim(offer, {})) return false;
  TransferSlot& slot = theirs(offer.slot);
  slot.released.store(offer.sequence, std::memory_order_relaxed);
  slot_advance(slot, offer.sequence, SlotState::kClaimed, SlotState::kDone, status);
  return true;
}

}  // namespace oh
