// SPDX-License-Identifier: Apache-2.0
//
// SlotTable: the transfer slots of one link. Local slots are posted or withdrawn, and free again
// once the peer has released them. The peer's slots are claimed or refused (transport/slot.h has
// the states).
//
// Threading: guarded by the link's lock.
#pragma once

#include <array>
#include <vector>

#include "transport/shm/segment.h"

namespace oh {

// A slot that the peer has posted.
struct SlotOffer {
  uint32_t slot = 0;
  uint32_t sequence = 0;
  uint64_t remote = 0;
  uint32_t block = 0;
  uint64_t length = 0;
};

// The description of a buffer in a slot.
struct SlotBuffer {
  uint64_t address = 0;
  uint64_t length = 0;
  uint32_t block = 0;
  uint32_t memory = 0;  // SlotMemory
};

class SlotTable {
 public:
  void open(Segment& segment);

  // ---- Local slots.
  struct Posted {
    TransferSlot* slot = nullptr;  // null: all are in use
    uint32_t index = 0;
    uint32_t sequence = 0;
  };
  bool has_free();
  // `attended`: a local thread waits for the operation.
  Posted post(const SlotBuffer& buffer, bool attended);
  // Withdraws a posted slot. False when the peer has claimed it. The peer reads `why`.
  bool withdraw(uint32_t index, oh_status why);
  // The transfer is over on this side. The slot is free once the peer has released it, too.
  void end(uint32_t index) { lingering_.push_back(index); }

  // ---- The peer's slots.
  TransferSlot& theirs(uint32_t index) const { return segment_->incoming().slots[index]; }
  // acquire: if the slot is posted, the owner's fields are valid.
  bool is_posted(const SlotOffer& offer) const {
    return word_of(offer) == slot_word(offer.sequence, SlotState::kPosted);
  }
  // Claims a slot. Requires is_posted(): else it would overwrite fields of the slot's next use.
  // False when the owner has withdrawn the slot meanwhile.
  bool claim(const SlotOffer& offer, const SlotBuffer& buffer);
  // Claims a slot only to end it with `status`. False when the owner has withdrawn it.
  bool refuse(const SlotOffer& offer, oh_status status);
  // Whether the owner withdrew the slot because the link ends: the message is lost, not cancelled.
  bool ended_with_link(const SlotOffer& offer) const {
    return word_of(offer) == slot_word(offer.sequence, SlotState::kCancelled, OH_ERR_PEER_LOST);
  }

 private:
  uint64_t word_of(const SlotOffer& offer) const {
    return theirs(offer.slot).word.load(std::memory_order_acquire);
  }
  void reclaim();

  Segment* segment_ = nullptr;
  std::array<uint32_t, kSlots> sequence_{};
  std::vector<uint32_t> free_;
  std::vector<uint32_t> lingering_;  // done, not yet released by the peer
};

}  // namespace oh
