// SPDX-License-Identifier: Apache-2.0
//
// The segment: one piece of shared memory per pair of peers, and all that both sides share.
//
//   ┌ header (one page): magic, layout version, sizes │ side 0: state, … │ side 1: state, … ┐
//   ├ direction 0 (side 0 produces) ────────────────────────────────────────────────────────┤
//   │   consumer line   cells freed, payload freed, credit given back      (side 1 writes)  │
//   │   access lines    operations of side 0 inside side 1's regions; the phase by side 1   │
//   │   signals         one counter per slot                               (side 0 writes)  │
//   │   transfer slots  owned by side 0                                                     │
//   │   cells           the ring of frames                                 (side 0 writes)  │
//   │   payload ring    what does not fit into cells                       (side 0 writes)  │
//   ├ direction 1 (side 1 produces) ────────────────────────────────────────────────────────┤
//   ├ pipes of both directions, for device memory (transport/pipe_layout.h); not paged in     ┤
//   └───────────────────────────────────────────────────────────────────────────────────────┘
//
// Side 0 is the initiator. A peer that is its own peer has one side: direction 0 in both roles.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/status.h"
#include "platform/os/handles.h"
#include "transport/frame.h"
#include "transport/pipe_layout.h"
#include "transport/slot.h"

namespace oh {

// Written by its side, read by both; forward only. The fast mode holds while both are READY.
//   NONE ──▶ MAPPED ──▶ READY ──▶ FAILED      (FAILED may follow any of them)
enum class SideState : uint32_t { kNone = 0, kMapped = 1, kReady = 2, kFailed = 3 };

inline constexpr uint64_t kSegmentMagic = 0x31474553504f484fULL;  // "OHOPSEG1"
inline constexpr uint32_t kSegmentLayout = 2;
// Few cells, so that what both sides touch all the time stays in their first-level caches.
inline constexpr uint32_t kCells = 256;
inline constexpr uint32_t kPayloadRing = 256 * 1024;
inline constexpr uint32_t kSlots = 256;
inline constexpr uint32_t kSignals = 64;
inline constexpr size_t kNonceSize = 32;

struct alignas(64) SegmentSide {
  std::atomic<uint32_t> state;
  // What a thread of this side waits for, for the other side's error texts: WaitKind.
  std::atomic<uint32_t> waiting;
  std::atomic<uint64_t> waiting_tag;
  // The other side reads it here and through process_vm_readv; equal means that it can read us.
  uint8_t nonce[kNonceSize];
};

struct SegmentHeader {
  uint64_t magic;
  uint32_t layout;
  uint32_t cells;
  uint32_t payload_ring;
  uint32_t slots;
  uint32_t signals;
  uint32_t padding;
  uint64_t total;
  SegmentSide side[2];
};

struct SegmentDirection {
  struct alignas(64) {
    std::atomic<uint64_t> cells;    // cells consumed
    std::atomic<uint64_t> payload;  // payload bytes consumed
    std::atomic<uint64_t> credit;   // eager credit given back, in bytes since the start
  } consumer;
  // The producer's one-sided operations inside the consumer's regions. To retire a region the
  // consumer flips the phase and waits until the former phase's count is zero.
  struct alignas(64) {
    std::atomic<uint64_t> active[2];
  } access;
  struct alignas(64) {
    std::atomic<uint64_t> phase;
  } access_phase;
  alignas(64) std::atomic<uint64_t> signals[kSignals];
  TransferSlot slots[kSlots];
  Cell cells[kCells];
  uint8_t payload[kPayloadRing];
};

struct SegmentLayout {
  alignas(4096) SegmentHeader header;
  alignas(4096) SegmentDirection direction[2];
};
inline constexpr uint64_t kSegmentSize = sizeof(SegmentLayout);
// Costs memory only once a relay is used.
inline constexpr uint64_t kPipesSize = 2 * sizeof(PipeLayout);
static_assert(kSegmentSize <= 1024 * 1024, "a peer costs at most 1 MiB of host memory");

// A mapped segment, seen from one side.
class Segment {
 public:
  // A fresh one; `shared` gives it a descriptor that can be passed on, and all pages are in. With a
  // NUMA node they come from there, if they can.
  static Result<std::unique_ptr<Segment>> create(bool shared, int node = -1);
  // One that came from the other side; checks that it is what it says.
  static Result<std::unique_ptr<Segment>> open(UniqueFd fd);
  // The other side of one in this process.
  static std::unique_ptr<Segment> alias(const Segment& other);

  int fd() const { return fd_.get(); }
  SegmentLayout& layout() { return *layout_; }

  // Which side we are; both roles on one side when a peer is its own peer.
  void take_side(int side, bool loopback);
  int side() const { return side_; }
  SegmentSide& mine() { return layout_->header.side[side_]; }
  SegmentSide& theirs() { return layout_->header.side[loopback_ ? side_ : 1 - side_]; }
  SegmentDirection& outgoing() { return layout_->direction[side_]; }
  SegmentDirection& incoming() { return layout_->direction[loopback_ ? side_ : 1 - side_]; }
  PipeLayout* pipes() { return pipes_; }
  // Holds all of its memory.
  std::shared_ptr<void> keep() const {
    return std::make_shared<std::pair<std::shared_ptr<Mapping>, std::shared_ptr<Mapping>>>(
        mapping_, pipe_mapping_);
  }
  PipeLayout& outgoing_pipe() { return pipes_[side_]; }
  PipeLayout& incoming_pipe() { return pipes_[loopback_ ? side_ : 1 - side_]; }

  // Forward only; false if it would go back.
  bool advance(SideState to);
  SideState their_state() { return static_cast<SideState>(theirs().state.load()); }

 private:
  Segment() = default;
  UniqueFd fd_;
  Status map_own(bool shared, int node);
  Status map_pipes();

  std::shared_ptr<Mapping> mapping_;
  std::shared_ptr<Mapping> pipe_mapping_;
  SegmentLayout* layout_ = nullptr;
  PipeLayout* pipes_ = nullptr;
  int side_ = 0;
  bool loopback_ = false;
};

}  // namespace oh
