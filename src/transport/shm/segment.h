// SPDX-License-Identifier: Apache-2.0
//
// The segment: the memory that both sides of a link on one host share. Within a process it is
// anonymous memory.
//
//   ┌ header (one page): magic, layout version, sizes │ side 0: state, … │ side 1: state, … ┐
//   ├ direction 0 (side 0 produces) ────────────────────────────────────────────────────────┤
//   │   consumer line   cells freed, payload freed, credit returned        (side 1 writes)  │
//   │   access lines    operations of side 0 in side 1's regions; side 1 writes the phase   │
//   │   signals         one counter per slot                               (side 0 writes)  │
//   │   transfer slots  owned by side 0                                                     │
//   │   cells           the ring of frames                                 (side 0 writes)  │
//   │   payload ring    payload that does not fit into cells               (side 0 writes)  │
//   ├ direction 1 (side 1 produces) ────────────────────────────────────────────────────────┤
//   ├ pipes of both directions, for device memory (transport/pipe_layout.h); not populated  ┤
//   └───────────────────────────────────────────────────────────────────────────────────────┘
//
// Side 0 is the initiator. A loopback link has one side: direction 0 in both roles.
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

// Written by its side, read by both; forward only. The link uses the segment while both are READY.
//   NONE ──▶ MAPPED ──▶ READY ──▶ FAILED      (FAILED may follow any of them)
enum class SideState : uint32_t { kNone = 0, kMapped = 1, kReady = 2, kFailed = 3 };

inline constexpr uint64_t kSegmentMagic = 0x31474553504f484fULL;  // "OHOPSEG1"
inline constexpr uint32_t kSegmentLayout = 2;
// Few cells, so that the ring stays in both sides' first-level caches.
inline constexpr uint32_t kCells = 256;
inline constexpr uint32_t kPayloadRing = 256 * 1024;
inline constexpr uint32_t kSlots = 256;
inline constexpr uint32_t kSignals = 64;
inline constexpr size_t kNonceSize = 32;

struct alignas(64) SegmentSide {
  std::atomic<uint32_t> state;
  // WaitKind of the operation that a thread of this side waits for; for the peer's error texts.
  std::atomic<uint32_t> waiting;
  std::atomic<uint64_t> waiting_tag;
  // The peer compares it with what process_vm_readv reads: equal if the peer can read this process.
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
    std::atomic<uint64_t> credit;   // eager credit returned, in bytes since the start
  } consumer;
  // The producer's one-sided operations in flight in the consumer's regions, by phase. To retire a
  // region the consumer flips the phase and waits until the count of the former phase is zero.
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
// Occupies memory only once a pipe is used.
inline constexpr uint64_t kPipesSize = 2 * sizeof(PipeLayout);
static_assert(kSegmentSize <= 1024 * 1024, "a peer costs at most 1 MiB of host memory");

// A mapped segment, as one side uses it.
class Segment {
 public:
  // Creates a segment, on the given NUMA node if possible. `shared`: backed by a memfd that can be
  // passed to the peer, with all pages populated.
  static Result<std::unique_ptr<Segment>> create(bool shared, int node = -1);
  // Maps the peer's segment. OH_ERR_VERSION: its layout is not this build's.
  static Result<std::unique_ptr<Segment>> open(UniqueFd fd);
  // The other side of a segment within this process; shares its mappings.
  static std::unique_ptr<Segment> alias(const Segment& other);

  int fd() const { return fd_.get(); }
  SegmentLayout& layout() { return *layout_; }

  // Sets the local side. `loopback`: one side has both roles.
  void take_side(int side, bool loopback);
  int side() const { return side_; }
  SegmentSide& mine() { return layout_->header.side[side_]; }
  SegmentSide& theirs() { return layout_->header.side[loopback_ ? side_ : 1 - side_]; }
  SegmentDirection& outgoing() { return layout_->direction[side_]; }
  SegmentDirection& incoming() { return layout_->direction[loopback_ ? side_ : 1 - side_]; }
  PipeLayout* pipes() { return pipes_; }
  // A reference that keeps the mappings alive.
  std::shared_ptr<void> keep() const {
    return std::make_shared<std::pair<std::shared_ptr<Mapping>, std::shared_ptr<Mapping>>>(
        mapping_, pipe_mapping_);
  }
  PipeLayout& outgoing_pipe() { return pipes_[side_]; }
  PipeLayout& incoming_pipe() { return pipes_[loopback_ ? side_ : 1 - side_]; }

  // Advances the local state; false if it is already at or beyond `to`.
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
