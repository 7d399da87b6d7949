// SPDX-License-Identifier: Apache-2.0
#include "stream/stream_layout.h"

#include <algorithm>
#include <bit>

namespace oh {
namespace {

using kernels::StreamKind;
using kernels::StreamOp;
using onehop::detail::kRowBytes;
using onehop::detail::kRowLines;

constexpr uint32_t kMostOfCluster = 8;  // blocks that every GPU with clusters has
constexpr uint32_t kOfPeers = 2;        // a launch takes 1 / 2 of the GPU's SMs

constexpr uint64_t divided(uint64_t value, uint64_t by) { return (value + by - 1) / by; }

// Blocks that a message gains from. `alone`: the launch is one cluster, or several, for this
// message.
uint32_t blocks_for(const LayoutOp& one, bool alone) {
  // Below, more blocks cost more in synchronization than they gain, but for an operation that is
  // alone: a send, or a receive of more than 8 KiB.
  constexpr uint64_t kOneBlock = 16 * 1024;
  constexpr uint64_t kOneBlockAlone = 8 * 1024;
  const StreamOp& op = *one.op;
  const uint64_t bytes = op.bytes;
  // The receiver of a put has nothing to copy: more blocks would only wait.
  if (!of_lane(op) || only_waits(op, one.expects_put)) return 1;
  const bool sends = op.kind == StreamKind::kSend;
  if (bytes <= (!alone ? kOneBlock : sends ? 0 : kOneBlockAlone)) return 1;
  const bool few = bytes <= kMostOfOneTeam || one.expects_put;
  const uint64_t most = few ? std::min(one.most, kMostOfCluster) : one.most;
  uint64_t blocks = divided(bytes, one.per_block);
  // A receive may wait, so it has half as many: by default each line of 16 KiB has a thread.
  if (alone && !sends && bytes <= kOneBlock) blocks = std::bit_ceil(divided(blocks, 2));
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 1, most));
}

// The first operation on the same half of a lane. Operations of no lane are apart.
LayoutOp* head_of(std::span<LayoutOp> ops, LayoutOp& one) {
  const StreamOp& op = *one.op;
  if (!of_lane(op)) return &one;
  return &*std::find_if(ops.begin(), ops.end(), [&](const LayoutOp& other) {
    return other.peer == one.peer && other.op->kind == op.kind &&
           other.op->lane.lane == op.lane.lane;
  });
}

// Sets the heads, and what the operations of each want together.
void join_heads(std::span<LayoutOp> ops, bool alone) {
  for (LayoutOp& one : ops) {
    one.head = head_of(ops, one);
    one.head->blocks = std::max(one.head->blocks, blocks_for(one, alone));
  }
}

// The heads of a launch by what they want: one block, or more.
struct Heads {
  uint32_t single = 0;
  uint32_t others = 0;
  uint32_t least = kMostOfCluster;  // blocks that each of the others wants
};
Heads count_heads(std::span<const LayoutOp> ops) {
  Heads heads;
  for (const LayoutOp& one : ops) {
    if (one.head != &one) continue;
    ++(one.blocks == 1 ? heads.single : heads.others);
    if (one.blocks > 1) heads.least = std::min(heads.least, one.blocks);
  }
  return heads;
}

// The most blocks for each head that wants more than one, so that they take `left` in all. What
// some do not want is for the others.
uint32_t most_for_each(std::span<const LayoutOp> ops, uint32_t left, uint32_t heads) {
  uint32_t most = left / heads;
  while (true) {
    uint32_t rest = left;
    uint32_t others = 0;  // that want more
    for (const LayoutOp& one : ops) {
      if (one.head != &one || one.blocks == 1) continue;
      one.blocks > most ? ++others : rest -= one.blocks;
    }
    if (others == 0 || rest / others == most) return std::max(most, 1U);
    most = rest / others;
  }
}

// Grants blocks to the heads that want more than one. Returns the blocks of a cluster, which is the
// same for all: several blocks move a message faster in one cluster than in several teams. But
// where whole clusters for the single blocks would cost the others half of theirs, it is smaller.
uint32_t grant(std::span<LayoutOp> ops, const LayoutGpu& gpu) {
  const Heads heads = count_heads(ops);
  if (heads.others == 0) return 1;
  const uint32_t share = gpu.processors / (gpu.begins_early ? 2 * kOfPeers : kOfPeers);
  auto left_by = [&](uint32_t cluster) { return share - std::min(heads.single * cluster, share); };
  auto each_by = [&](uint32_t cluster) { return left_by(cluster) / heads.others; };
  uint32_t cluster = gpu.clusters ? std::bit_floor(heads.least) : 1;
  while (cluster > 1 && (each_by(cluster) < cluster || 2 * each_by(cluster) < each_by(1))) {
    cluster /= 2;
  }
  const uint32_t most = most_for_each(ops, left_by(cluster), heads.others);
  for (LayoutOp& one : ops) one.blocks = std::min(one.blocks, most);
  return cluster;
}

bool waits_for_peer(const StreamOp& op) {
  return op.kind == StreamKind::kRecv || op.kind == StreamKind::kWait;
}

// Places the head's operations behind those that have been placed.
void place(std::span<LayoutOp> ops, const LayoutOp& head, Layout* layout) {
  const uint32_t teams = std::max(head.blocks / layout->cluster, 1U);
  const StreamOp* before = nullptr;
  for (const LayoutOp& one : ops) {
    if (one.head != &head) continue;
    one.op->first = layout->teams;
    one.op->teams = teams;
    one.op->lane.follows = before ? before->lane.token : 0;
    before = one.op;
  }
  layout->teams += teams;
}

// Threads that the operation wants of each of its blocks. Fewer threads begin sooner and poll less,
// but in several blocks a thread's third line takes longer than more threads take to begin. (That
// was measured on GPUs with clusters: `alone`, as above.)
uint32_t threads_for(const LayoutOp& one, const Layout& layout, bool alone) {
  constexpr uint32_t kToWait = 96;      // a block of another message has room beside them
  constexpr uint32_t kOfSeveral = 352;  // threads of each of several blocks
  const StreamOp& op = *one.op;
  if (!of_lane(op)) return kRowLines;
  if (only_waits(op, one.expects_put)) return kToWait;
  const uint64_t blocks = alone ? layout.teams * layout.cluster : 1;
  const uint64_t rows = std::max<uint64_t>(1, divided(op.bytes, kRowBytes * blocks));
  if (!alone) {
    return static_cast<uint32_t>(std::min<uint64_t>(rows * kRowLines, kernels::kStreamThreads));
  }
  if (one.large) {
    const bool one_cluster = layout.teams == 1 && blocks > 1;
    return op.kind == StreamKind::kSend && one_cluster ? kOfSeveral : kernels::kStreamThreads;
  }
  const uint64_t most = (blocks == 1 ? kernels::kStreamSmallThreads : kOfSeveral) / kRowLines;
  const uint64_t lines = divided(rows, most);  // of a thread
  if (blocks > 1 && lines > 2) return kernels::kStreamThreads;
  return static_cast<uint32_t>(divided(rows, lines)) * kRowLines;
}

}  // namespace

Layout lay_out(std::span<LayoutOp> ops, const LayoutGpu& gpu) {
  const bool alone = ops.size() == 1 && gpu.clusters;
  join_heads(ops, alone);
  Layout layout;
  layout.cluster = grant(ops, gpu);
  // The GPU begins the first blocks first: receives that wait cannot take the room of the sends.
  for (const bool waits : {false, true}) {
    for (LayoutOp& one : ops) {
      if (one.head == &one && waits_for_peer(*one.op) == waits) place(ops, one, &layout);
    }
  }
  for (const LayoutOp& one : ops) {
    layout.threads = std::max(layout.threads, threads_for(one, layout, alone));
  }
  return layout;
}

}  // namespace oh
