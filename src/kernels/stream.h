// SPDX-License-Identifier: Apache-2.0
//
// Device code of the stream domain's operations, one or many in a launch, and of lane resets. The
// same code runs on a device and in the fake driver.
//
// A kernel has the teams of all its operations; each operation holds the range of its own. A team
// is a block, or a cluster of blocks.
#pragma once

#include <cstdint>

#include "kernels/slab.h"
#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "onehop/detail/signal.h"

namespace oh::kernels {

inline constexpr char kStreamKernel[] = "onehop_stream";
inline constexpr char kStreamLargeKernel[] = "onehop_stream_large";
inline constexpr char kStreamFewKernel[] = "onehop_stream_few";
inline constexpr char kStreamManyKernel[] = "onehop_stream_many";
inline constexpr char kLanesKernel[] = "onehop_lanes";
inline constexpr unsigned kStreamThreads = 512;
inline constexpr unsigned kStreamSmallThreads = 704;  // of onehop_stream
inline constexpr unsigned kLanesThreads = 512;
inline constexpr uint32_t kFew = 8;
inline constexpr uint32_t kMany = 128;  // 24 KiB of arguments; a launch takes at most 32,764 bytes

enum class StreamKind : uint32_t { kSend = 1, kRecv = 2, kSignal = 3, kWait = 4 };

struct StreamOp {
  oh_lane_handle lane;
  uint64_t data;
  uint64_t bytes;      // of the message, at most; signals: their count
  uint64_t size_from;  // device address of the size; 0: the size is `bytes`
  uint64_t size_to;    // device address for the received size; 0: none
  uint64_t offset;     // of the receive buffer in the region
  uint32_t region;     // of the receive buffer; 0: the peer does not map it
  StreamKind kind;
  uint32_t slot;   // signal slot
  uint32_t first;  // first team in the grid
  uint32_t teams;
  uint32_t reserved;
};
static_assert(sizeof(StreamOp) == 192, "arguments of kernels are small");

struct StreamArgs {
  StreamOp op;
};
struct StreamFewArgs {
  uint64_t count;
  StreamOp ops[kFew];
};
struct StreamManyArgs {
  uint64_t count;
  StreamOp ops[kMany];
};
static_assert(sizeof(StreamManyArgs) <= 32764);

// Called by all threads of the operation's teams. Pass false as `kAnySize` only if `op.bytes` of a
// message is at most small_bytes(op.lane): that leaves out the code of large messages.
template <typename A, bool kAnySize = true, typename G>
ONEHOP_PROTOCOL void run_stream(const StreamOp& op, G& group) {
  const bool speaks = group.leads() && group.team() == 0;
  switch (op.kind) {
    case StreamKind::kSend: {
      onehop::detail::Sender<A> sender(op.lane, group);
      if (!sender.take_early(group, kAnySize ? op.bytes : 0)) return;
      uint64_t bytes = op.bytes;
      if (op.size_from != 0) {
        bytes = A::load_relaxed(reinterpret_cast<const uint64_t*>(op.size_from));
        if (bytes > op.bytes && speaks) sender.half.warn(OH_LANE_RANGE, bytes, op.bytes);
        if (bytes > op.bytes) bytes = op.bytes;
      }
      sender.template send<kAnySize>(group, reinterpret_cast<const void*>(op.data), bytes,
                                     /*settled=*/true);
      sender.give(group);
      return;
    }
    case StreamKind::kRecv: {
      onehop::detail::Receiver<A> receiver(op.lane, group);
      if (!receiver.take(group)) return;
      const onehop::detail::Place place{op.region, op.offset, /*idle=*/op.lane.follows == 0};
      receiver.template receive<kAnySize>(group, reinterpret_cast<void*>(op.data), op.bytes, place,
                                          /*settled=*/true);
      if (op.size_to != 0 && speaks) {
        A::store_relaxed(reinterpret_cast<uint64_t*>(op.size_to), receiver.length);
      }
      if constexpr (kAnySize) {
        receiver.give(group);
      } else {
        receiver.finish(group);
      }
      return;
    }
    case StreamKind::kSignal:
      group.follow();
      group.let_next();
      (void)group.share(0);  // signal() begins with sync(): see Teams()
      (void)onehop::detail::signal<A>(op.lane, group, op.slot, op.bytes);
      return;
    case StreamKind::kWait: {
      group.follow();
      group.let_next();
      const uint32_t fault = onehop::detail::wait_signal<A>(op.lane, group, op.slot, op.bytes);
      if (fault == OH_LANE_OK || !speaks) return;
      auto& place = onehop::detail::signals_notice(op.lane)->warned[1];
      A::store_relaxed(&place.bytes, op.slot);
      A::store_relaxed(&place.capacity, op.bytes);
      A::store_release(&place.fault, fault);
      return;
    }
  }
}

// The steps from one epoch of a lane to the next.
enum class LanesStep : uint32_t {
  kLook = 0,   // changes nothing: only reads the states
  kStop = 1,   // kernels can no longer take the lane
  kBegin = 2,  // zeroes the lane and sets the epoch; kernels still cannot take it
  kOpen = 3,
  kImport = 4,  // not of a lane: writes an entry of the import table
};

// The kernel's answer, in host memory: the states of both halves before the step.
struct alignas(64) LanesAnswer {
  uint64_t states[2];
  uint64_t serial;  // of the launch; written last
};

// One block for each lane, from `lane` on.
struct LanesArgs {
  uint64_t slab;  // device address
  uint64_t slab_bytes;
  LanesAnswer* answers;  // one a lane
  uint64_t serial;
  uint32_t lane;
  uint32_t epoch;
  LanesStep step;
  uint32_t blocks;
  uint64_t place;  // kImport: index of the entry; then its new contents
  uint64_t number;
  uint64_t size;
  uint64_t base;
};

// Called by all threads of one block.
template <typename A, typename G>
ONEHOP_PROTOCOL void run_lanes(const LanesArgs& args, uint32_t lane, G& group) {
  using namespace onehop::detail;
  if (args.step == LanesStep::kImport) {
    if (!group.leads()) return;
    ImportTable* table = reinterpret_cast<ImportTable*>(args.slab + kImportsAt);
    write_import<A>(&table->entries[args.place], args.number, args.size, args.base);
    return;
  }
  const LanePlace place = lane_place(args.slab_bytes, lane);
  LaneMemory* memory = reinterpret_cast<LaneMemory*>(args.slab + place.memory);
  if (args.step == LanesStep::kBegin) {
    ImportTable* table = reinterpret_cast<ImportTable*>(args.slab + kImportsAt);
    if (group.leads()) A::store_relaxed(&table->shift, kImportShift);
    uint64_t* words = &memory->credit;
    const uint64_t count = (sizeof(LaneMemory) - 2 * sizeof(LaneHalf)) / sizeof(uint64_t);
    for (uint64_t i = group.rank(); i < count; i += group.size()) A::store_relaxed(&words[i], 0);
    uint64_t* lines = reinterpret_cast<uint64_t*>(args.slab + place.lines);
    for (uint64_t i = group.rank(); i < uint64_t{2} << place.ring_shift; i += group.size()) {
      A::store_relaxed(&lines[i], 0);
    }
  }
  group.sync();
  if (!group.leads()) return;
  LanesAnswer* answer = &args.answers[lane];
  LaneHalf* const halves[2] = {&memory->tx, &memory->rx};
  for (uint32_t side = 0; side < 2; ++side) {
    LaneHalf* half = halves[side];
    const uint64_t change = args.step == LanesStep::kStop ? kFailed : 0;
    // Release: an operation that takes the half later sees what kernels of this stream wrote
    // before. Acquire: an operation that released the half earlier has put all its bytes.
    A::store_relaxed(&answer->states[side], A::fetch_or_ordered(&half->state, change));
    // A refused kernel sets kBusy for a moment. kFailed is cleared only while kBusy is clear, so
    // that later kernels do not find the half busy.
    uint64_t state = A::load_relaxed(&half->state);
    while (args.step == LanesStep::kOpen && (state & kFailed) != 0) {
      const uint64_t closed = state & ~kBusy;
      const uint64_t seen = A::compare_swap(&half->state, closed, closed & ~kFailed);
      state = seen == closed ? closed & ~kFailed : seen;
    }
    if (args.step != LanesStep::kBegin) continue;
    A::store_relaxed(&half->owner, 0);
    A::store_relaxed(&half->chunks, 0);
    A::store_relaxed(&half->through, 0);
    A::store_relaxed(&half->routed, 0);
    // No kernel holds the half. kBusy may be left by a kernel that ended while holding it, or set
    // by a refused kernel, which does not clear the mark of another epoch.
    A::store_relaxed(&half->state, make_state(static_cast<uint8_t>(args.epoch), 0) | kFailed);
  }
  A::store_release(&answer->serial, args.serial);
}

}  // namespace oh::kernels
