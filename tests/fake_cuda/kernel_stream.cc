// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the stream domain, compiled for the host from the device sources. Each block is a
// thread and all run concurrently, since they wait for other blocks and for their peers.
//
// Threading: any thread.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels.h"
#include "kernels/stream.h"
#include "onehop/detail/host_atomics.h"

namespace oh::cuda::fake {
namespace {

using kernels::StreamKind;
using kernels::StreamOp;
using onehop::detail::HostAtomics;
using onehop::detail::ImportEntry;
using onehop::detail::ImportTable;
using onehop::detail::LaneNotice;
using onehop::detail::LaneSignals;
using onehop::detail::Pair;

// Memory at host addresses, kept alive.
struct HostRange {
  uint64_t base = 0;
  uint64_t size = 0;
  bool holds(const void* place) const { return reinterpret_cast<uint64_t>(place) - base < size; }
};

// The running kernel of this thread: how its waits end when the context is destroyed, and the
// memory it accesses over a link without atomics.
struct Running {
  const ContextState* context = nullptr;
  LaneNotice* notice = nullptr;
  HostRange torn[2] = {};
};
thread_local Running g_running;

struct Atomics : HostAtomics {
  static bool is_torn(const void* place) {
    return g_running.torn[0].holds(place) || g_running.torn[1].holds(place);
  }
  // Delays an access over the link. Long enough that a polling thread on the same processor runs in
  // between.
  static void travel(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }
  static void add_remote(uint64_t* word, uint64_t more) {
    if (!is_torn(word)) return HostAtomics::add_remote(word, more);
    const uint64_t before = load_acquire(word);
    travel(std::chrono::microseconds(20));
    store_release(word, before + more);
  }
  static void store_line(Pair* to, Pair value) {
    if (!is_torn(to)) return HostAtomics::store_line(to, value);
    store_release(&to->high, value.high);
    travel(std::chrono::milliseconds(2));
    store_release(&to->low, value.low);
  }
  static void pause() {
    sched_yield();
    const bool killed = g_running.context->killed.load(std::memory_order_relaxed);
    if (killed && g_running.notice != nullptr) {
      HostAtomics::store_relaxed(&g_running.notice->abort.word, 1);
    }
  }
};

// A block of one thread.
struct OneThread {
  ContextState& context;
  uint32_t at;
  uint32_t of;
  // A small message is staged in contiguous memory, as device memory may be in several pieces; a
  // large one is copied directly.
  HostRange near = {};
  uint64_t real = 0;
  HostRange lane[2] = {};  // local and remote
  bool good = true;
  uint32_t fault = 0;

  uint32_t team() const { return at; }
  uint32_t teams() const { return of; }
  uint32_t rank() const { return at; }
  uint32_t size() const { return of; }
  static bool leads() { return true; }
  static void follow() {}
  static void let_next() {}
  OneThread& part() { return *this; }
  static uint32_t parts() { return 1; }
  static uint32_t number() { return 0; }
  static void sync() {}
  void give_up(uint32_t why) { fault = why; }
  uint32_t end() const { return fault; }
  static bool any(bool flag) { return flag; }
  static uint64_t share(uint64_t value) { return value; }

  void find(const void* place, uint64_t bytes, std::vector<Piece>* out) {
    auto address = reinterpret_cast<uint64_t>(place);
    for (const HostRange& range : lane) {
      if (address - range.base >= range.size) continue;
      out->push_back({reinterpret_cast<char*>(address), bytes, nullptr});
      return;
    }
    if (address - near.base < near.size) address = address - near.base + real;
    good = good && pieces_of(context, address, bytes, out);
  }
  void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) {
    std::vector<Piece> target;
    std::vector<Piece> source;
    find(to, bytes, &target);
    find(from, bytes, &source);
    if (good) copy_pieces(std::move(target), std::move(source), bytes);
  }
};

// A lane's memory at host addresses, kept alive by this object.
struct HostLane {
  oh_lane_handle lane;
  std::vector<std::shared_ptr<void>> held;
  bool torn = false;  // the remote memory has no native atomics

  template <typename T>
  bool map(const ContextState& context, uint64_t* address, uint64_t count = 1) {
    std::shared_ptr<T> there = mapped(context, reinterpret_cast<T*>(*address), count);
    *address = reinterpret_cast<uint64_t>(there.get());
    held.push_back(there);
    return there != nullptr;
  }
  bool map_all(const ContextState& context) {
    torn = lacks_atomics(context, lane.theirs);
    const uint64_t bytes =
        lane.chunks_at + (static_cast<uint64_t>(lane.chunk_slots) << lane.chunk_shift);
    constexpr uint64_t kEntries =
        sizeof(ImportTable) + (sizeof(ImportEntry) << kernels::kImportShift);
    return map<uint8_t>(context, &lane.mine, bytes) && map<uint8_t>(context, &lane.theirs, bytes) &&
           map<LaneNotice>(context, &lane.notice, OH_LANES + 1 - lane.lane) &&
           map<LaneSignals>(context, &lane.signals) &&
           map<LaneSignals>(context, &lane.their_signals) &&
           map<uint8_t>(context, &lane.imports, kEntries);
  }
};

// An operation in host memory. Memory of a small message is staged: the source as it was when the
// kernel began; of a target, the bytes that its teams have stored when the kernel ends.
struct Task {
  explicit Task(const StreamOp& given) : op(given), host{given.lane, {}} {}

  bool prepare(const ContextState& context) {
    if (!host.map_all(context)) return false;
    op.lane = host.lane;
    for (uint64_t* word : {&op.size_from, &op.size_to}) {
      if (*word != 0 && !host.map<uint64_t>(context, word)) return false;
    }
    const bool of_lane = op.kind == StreamKind::kSend || op.kind == StreamKind::kRecv;
    const uint64_t most =
        of_lane ? std::min<uint64_t>(op.bytes, onehop::detail::most_small(op.lane)) : 0;
    real = op.data;
    if (most == 0) return true;
    if (!pieces_of(context, real, most, &there)) return false;
    // Reserves the full size without touching it, so that no other allocation lies beyond the
    // staged bytes.
    near.reserve(op.bytes);
    near.resize(most);
    copy_pieces({{near.data(), most, nullptr}}, there, most);
    before = near;
    op.data = reinterpret_cast<uint64_t>(near.data());
    return true;
  }
  // `any_size`: see run_stream().
  Code run(ContextState& context, uint32_t team, bool any_size) const {
    g_running = {&context, op.kind == StreamKind::kWait ? onehop::detail::signals_notice(op.lane)
                                                        : onehop::detail::notice(op.lane)};
    OneThread group{context, team, op.teams};
    const uint64_t lane_bytes =
        op.lane.chunks_at + (static_cast<uint64_t>(op.lane.chunk_slots) << op.lane.chunk_shift);
    group.lane[0] = {op.lane.mine, lane_bytes};
    group.lane[1] = {op.lane.theirs, lane_bytes};
    if (host.torn) {
      g_running.torn[0] = group.lane[1];
      g_running.torn[1] = {op.lane.their_signals, sizeof(LaneSignals)};
    }
    group.near = {op.data, near.empty() ? 0 : op.bytes};
    group.real = real;
    any_size ? kernels::run_stream<Atomics, true>(op, group)
             : kernels::run_stream<Atomics, false>(op, group);
    return group.good ? kSuccess : kIllegalAddress;
  }
  // Bytes beyond the received message stay unchanged.
  void finish() {
    if (op.kind != StreamKind::kRecv) return;
    size_t at = 0;
    for (Piece& piece : there) {
      for (size_t i = 0; i < piece.size; ++i, ++at) {
        if (near[at] != before[at]) piece.bytes[i] = near[at];
      }
    }
  }

  StreamOp op;
  HostLane host;
  uint64_t real = 0;
  std::vector<Piece> there;
  std::vector<char> near;
  std::vector<char> before;
};

// Operations that share their blocks run one after the other.
Code run_block(ContextState& context, const std::vector<std::unique_ptr<Task>>& tasks,
               uint32_t block, bool any_size) {
  for (const auto& task : tasks) {
    const bool mine = block >= task->op.first && block < task->op.first + task->op.teams;
    if (!mine) continue;
    const Code code = task->run(context, block - task->op.first, any_size);
    if (code != kSuccess) return code;
  }
  return kSuccess;
}

Code run_all(ContextState& context, const Grid& grid, const StreamOp* ops, uint64_t count,
             bool any_size) {
  uint32_t blocks = 0;
  std::vector<std::unique_ptr<Task>> tasks;
  for (uint64_t i = 0; i < count; ++i) {
    blocks = std::max(blocks, ops[i].first + ops[i].teams);
    tasks.push_back(std::make_unique<Task>(ops[i]));
    if (!tasks.back()->prepare(context)) return kIllegalAddress;
  }
  if (grid.blocks != std::max(1u, blocks) * grid.cluster) return kLaunchFailed;
  std::vector<Code> codes(blocks, kSuccess);
  std::vector<std::thread> others;
  for (uint32_t block = 1; block < blocks; ++block) {
    others.emplace_back([&, block] { codes[block] = run_block(context, tasks, block, any_size); });
  }
  if (blocks > 0) codes[0] = run_block(context, tasks, 0, any_size);
  for (std::thread& other : others) other.join();
  for (const auto& task : tasks) task->finish();
  const auto bad = std::find_if(codes.begin(), codes.end(), [](Code code) { return code != 0; });
  return bad == codes.end() ? kSuccess : *bad;
}

template <bool kAnySize>
Code run_one(ContextState& context, const Grid& grid, const void* argument) {
  kernels::StreamArgs args;
  memcpy(&args, argument, sizeof(args));
  return run_all(context, grid, &args.op, args.op.teams > 0 ? 1 : 0, kAnySize);
}

template <typename Args>
Code run_some(ContextState& context, const Grid& grid, const void* argument) {
  const auto args = std::make_unique<Args>();
  memcpy(args.get(), argument, sizeof(Args));
  return run_all(context, grid, args->ops, args->count, /*any_size=*/true);
}

Code run_lanes(ContextState& context, const Grid& grid, const void* argument) {
  kernels::LanesArgs args;
  memcpy(&args, argument, sizeof(args));
  const bool imports = args.step == kernels::LanesStep::kImport;
  const uint64_t bytes = imports ? kernels::kLinesAt : args.slab_bytes;
  const auto slab = mapped(context, reinterpret_cast<uint8_t*>(args.slab), bytes);
  const auto answers = imports ? nullptr : mapped(context, args.answers, OH_LANES);
  if (slab == nullptr || (answers == nullptr && !imports)) return kIllegalAddress;
  args.slab = reinterpret_cast<uint64_t>(slab.get());
  args.answers = answers.get();
  const uint32_t blocks = std::max(1u, args.blocks);
  if (grid.blocks != blocks) return kLaunchFailed;
  for (uint32_t block = 0; block < blocks; ++block) {
    OneThread group{context, 0, 1};
    kernels::run_lanes<HostAtomics>(args, args.lane + block, group);
  }
  return kSuccess;
}

}  // namespace

const Kernel kStream = {kernels::kStreamKernel, sizeof(kernels::StreamArgs),
                        kernels::kStreamSmallThreads, false, run_one<false>};
const Kernel kStreamLarge = {kernels::kStreamLargeKernel, sizeof(kernels::StreamArgs),
                             kernels::kStreamThreads, false, run_one<true>};
const Kernel kStreamFew = {kernels::kStreamFewKernel, sizeof(kernels::StreamFewArgs),
                           kernels::kStreamThreads, false, run_some<kernels::StreamFewArgs>};
const Kernel kStreamMany = {kernels::kStreamManyKernel, sizeof(kernels::StreamManyArgs),
                            kernels::kStreamThreads, false, run_some<kernels::StreamManyArgs>};
const Kernel kLanes = {kernels::kLanesKernel, sizeof(kernels::LanesArgs), kernels::kLanesThreads,
                       false, run_lanes};

}  // namespace oh::cuda::fake
