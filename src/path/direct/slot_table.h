// SPDX-License-Identifier: Apache-2.0
//
// SlotTable: the transfer slots of one link. Ours are posted, withdrawn, and free again once the
// other side has released them; theirs are claimed or refused (transport/slot.h has the states).
//
// Threading: guarded by the link's lock.
#pragma once

#include <array>
#include <vector>

#include "transport/shm/segment.h"

namespace oh {

// What the other side has posted.
struct SlotOffer {
  uint32_t slot = 0;
  uint32_t sequence = 0;
  uint64_t remote = 0;
  uint32_t block = 0;
  uint64_t length = 0;
};

// A buffer, as a slot describes it.
struct SlotBuffer {
  uint64_t address = 0;
  uint64_t length = 0;
  uint32_t block = 0;
  uint32_t memory = 0;  // SlotMemory
};

class SlotTable {
 public:
  void open(Segment& segment);

  // ---- Ours.
  struct Posted {
    TransferSlot* slot = nullptr;  // null: all are in use
    uint32_t index = 0;
    uint32_t sequence = 0;
  };
  bool has_free();
  // `attended`: a thread of ours waits for the operation.
  Posted post(const SlotBuffer& buffer, bool attended);
  // Takes a posted slot back: false when it has been claimed. `why` is for the other side.
  bool withdraw(uint32_t index, oh_status why);
  // The transfer is over here. The slot is free once the other side has released it, too.
  void end(uint32_t index) { lingering_.push_back(index); }

  // ---- Theirs.
  TransferSlot& theirs(uint32_t index) const { return segment_->incoming().slots[index]; }
  // acquire: the owner's fields are valid if it is.
  bool is_posted(const SlotOffer& offer) const {
    return word_of(offer) == slot_word(offer.sequence, SlotState::kPosted);
  }
  // Only after is_posted(): else it would spoil the fields of the slot's next use. False when the
  // owner has withdrawn it meanwhile.
  bool claim(const SlotOffer& offer, const SlotBuffer& buffer);
  // Claims it only to end it with `status`; false when it was withdrawn.
  bool refuse(const SlotOffer& offer, oh_status status);
  // Whether its owner took it back because the link ends: the message is lost, not withdrawn.
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
  std::vector<uint32_t> lingering_;  // done, not yet released by the other side
};

}  // namespace oh
