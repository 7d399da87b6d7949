// SPDX-License-Identifier: Apache-2.0
//
// Transfer slots: one per operation that moves bytes directly between two buffers. The owner posts
// a slot in its half of the segment; the other side claims it. Between host buffers both sides then
// copy in chunks, each from its own end. If a buffer is in device memory, the claimer decides once
// how to copy (CopyMode): the copy engine of one side in one chunk, or the pipe.
//
//            claim (other side)                  last chunk
//   POSTED ─────────────────────▶ CLAIMED ───────────────────▶ DONE(status)
//      │
//      └──────▶ CANCELLED (owner)                    the owner frees it when `released` shows
//                                                    that the other side has seen DONE
//
// The word's sequence distinguishes uses of one slot: a claim with a stale sequence fails.
//
//   line 0  word 8 | owner address 8 | owner length 8 | claimer address 8 | claimer length 8 |
//           owner block 4 | claimer block 4 | owner memory 4 | claimer memory 4
//   line 1  cursor: back 32 | front 32 (both sides, compare-and-swap) | copied 8 | failure 4 |
//           released 4 | attended 4 | mode 4 | enqueued 4
//
// A block is the number of the shared block or device memory export that contains the address, 0
// for private memory. Memory is a set of SlotMemory flags.
//
// Threading: the owner writes its fields before POSTED. The claimer writes its own before CLAIMED,
// so a claim that fails leaves the owner's fields intact. Everything else is atomic.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"

namespace oh {

enum class SlotState : uint8_t { kFree = 0, kPosted = 1, kClaimed = 2, kDone = 3, kCancelled = 4 };

// The word: sequence 32 | state 8 | status 8 (negated code) | marks 16. A copy engine can store
// these eight bytes as the done word of its copy.
inline constexpr uint64_t kSlotByWorker = 1;  // mark: the worker kernel copied
// Mark of a claimed slot, set by the side that does not copy: releases its waiting streams before
// the copy ends.
inline constexpr uint64_t kSlotLeft = 2;
inline constexpr uint64_t slot_word(uint32_t sequence, SlotState state, oh_status status = OH_OK) {
  return static_cast<uint64_t>(sequence) << 32 | static_cast<uint64_t>(state) << 24 |
         static_cast<uint64_t>(static_cast<uint8_t>(-status)) << 16;
}
inline constexpr uint32_t slot_sequence(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
inline constexpr SlotState slot_state(uint64_t word) {
  return static_cast<SlotState>(static_cast<uint8_t>(word >> 24));
}
inline oh_status slot_status(uint64_t word) {
  return status_from(-static_cast<int>(static_cast<uint8_t>(word >> 16)), OH_ERR_PROTOCOL);
}

// Streams of the side that does not copy wait until the word is at least this, by a cyclic
// comparison: DONE, the mark kSlotLeft, and every later use of the slot release them.
inline constexpr uint64_t slot_passes(uint32_t sequence) {
  return slot_word(sequence, SlotState::kClaimed) | kSlotLeft;
}

// The allowed state transitions; within one sequence the state only moves forward.
inline constexpr bool slot_may_advance(SlotState from, SlotState to) {
  switch (from) {
    case SlotState::kFree:
      return to == SlotState::kPosted;
    case SlotState::kPosted:
      return to == SlotState::kClaimed || to == SlotState::kCancelled;
    case SlotState::kClaimed:
      return to == SlotState::kDone;
    case SlotState::kDone:
    case SlotState::kCancelled:
      return to == SlotState::kFree;
  }
  return false;
}

// The kind of memory at an address in a slot; plain host memory is 0.
enum SlotMemory : uint32_t {
  kSlotDevice = 1,    // only copy engines may access it
  kSlotMappable = 2,  // the other side can map it: its block has been or will be published
  kSlotPending = 4,   // earlier work on it is pending: the other side must not access it yet
  kSlotPinned = 8,    // host memory that the engine of its own side copies at full speed
};

// Shift of the device ordinal, above the flags. The ordinal is valid within one process only.
inline constexpr uint32_t kSlotOrdinal = 16;

// How a transfer with device memory is copied. The claimer replaces kUndecided once. A side that
// stops the transfer before that sets kEngineOfClaimer and takes the only chunk.
enum class CopyMode : uint32_t {
  kUndecided = 0,
  kEngineOfClaimer = 1,  // in one chunk; the engine stores DONE behind its copy
  kEngineOfOwner = 2,    // the same; an owner that cannot map the claimer's memory sets kRelay
  kRelay = 3,            // the source fills the pipe, the sink drains it and counts the chunks
  kStaged = 4,           // the same by the sink's slab; a source that cannot map it sets kRelay
};

struct alignas(128) TransferSlot {
  std::atomic<uint64_t> word;
  // A claimer reads the owner's fields before its compare-and-swap, while the owner may already
  // write the slot's next use. The values are valid only if the compare-and-swap succeeds.
  std::atomic<uint64_t> owner_address;
  uint64_t owner_length;
  uint64_t claimer_address;
  uint64_t claimer_length;
  std::atomic<uint32_t> owner_block;
  uint32_t claimer_block;
  std::atomic<uint32_t> owner_memory;
  uint32_t claimer_memory;

  alignas(64) std::atomic<uint64_t> cursor;  // chunks taken: back 32 | front 32
  std::atomic<uint64_t> copied;              // chunks completed, including failed ones
  std::atomic<uint32_t> failure;             // negated status of the first failed chunk
  std::atomic<uint32_t> released;            // last sequence that the other side has released
  std::atomic<uint32_t> attended;            // 1: a thread of the owner waits for this operation
  std::atomic<uint32_t> mode;                // CopyMode
  // Sequence whose copy is enqueued, with the done word behind it: it completes without a thread of
  // either side. The copying side stores it. If it never does (an older version), the other side
  // waits for DONE.
  std::atomic<uint32_t> enqueued;
};
static_assert(sizeof(TransferSlot) == 128);

// Bytes per chunk; both sides compute the same. A medium-sized message has two, so that each side
// copies one. At most 256 KiB, so that a side that starts late still finds work.
inline constexpr uint64_t slot_chunk(uint64_t length) {
  constexpr uint64_t kPage = 4096;
  uint64_t half = (length / 2 + kPage - 1) / kPage * kPage;
  return half < 32 * 1024 ? 32 * 1024 : half > 256 * 1024 ? 256 * 1024 : half;
}

// Moves the word from `from` to `to` within its sequence. False: the state is not `from`, or the
// slot has been reused. Sequentially consistent: pairs with the sleeper's check of the word.
inline bool slot_advance(TransferSlot& slot, uint32_t sequence, SlotState from, SlotState to,
                         oh_status status = OH_OK) {
  if (!slot_may_advance(from, to)) return false;
  uint64_t expected = slot_word(sequence, from);
  const uint64_t next = slot_word(sequence, to, status);
  if (slot.word.compare_exchange_strong(expected, next, std::memory_order_seq_cst)) return true;
  return from == SlotState::kClaimed && expected == slot_passes(sequence) &&
         slot.word.compare_exchange_strong(expected, next, std::memory_order_seq_cst);
}

// Releases the streams that wait for slot_passes(). The slot stays claimed until the copy ends.
inline void slot_leave(TransferSlot& slot, uint32_t sequence) {
  uint64_t expected = slot_word(sequence, SlotState::kClaimed);
  slot.word.compare_exchange_strong(expected, slot_passes(sequence), std::memory_order_seq_cst);
}

}  // namespace oh
