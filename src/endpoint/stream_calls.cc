// SPDX-License-Identifier: Apache-2.0
#include "endpoint/stream_calls.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <mutex>

namespace oh {

using kernels::StreamKind;
using kernels::StreamOp;

namespace {

constexpr uint64_t kBlockBytes = 6 * 1024;        // of a small message: a line a thread
constexpr uint32_t kOfPeers = 2;                  // of the GPU's processors a group takes 1 / 2
constexpr uint64_t kOffsets = uint64_t{1} << 48;  // that a posting can say

// An operation that is to be launched, and who must live until it is.
struct Pending {
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<Peer> peer;
  cuda::Stream stream = nullptr;
  bool capturing = false;
  Deadline deadline = Deadline::never();
  StreamOp op{};
};

struct Group {
  uint32_t depth = 0;
  std::vector<Pending> pending;
};

Group& group() {
  thread_local Group ours;
  return ours;
}

bool of_lane(const StreamOp& op) {
  return op.kind == StreamKind::kSend || op.kind == StreamKind::kRecv;
}
LaneSide side_of(const StreamOp& op) {
  return op.kind == StreamKind::kSend ? LaneSide::kSend : LaneSide::kRecv;
}

// Blocks of one message.
uint32_t blocks_for(const StreamOp& op, const Config& config, uint32_t most) {
  if (!of_lane(op)) return 1;
  const auto share = static_cast<uint64_t>(config.stream_share);
  const auto blocks = static_cast<uint64_t>(config.stream_blocks);
  const uint64_t wanted = std::min((op.bytes + share - 1) / share, blocks);
  return std::clamp<uint32_t>(static_cast<uint32_t>(wanted), 1, std::max<uint32_t>(most, 1));
}

// How a launch is divided: into teams, each of `cluster` blocks.
struct Layout {
  uint32_t teams = 0;
  uint32_t cluster = 1;
};

// A small message of several blocks is one team, a cluster: it takes its lane at once. A large one
// may go through chunks, which teams fill and empty beside each other.
uint32_t cluster_for(const Pending& only) {
  constexpr uint32_t kMostBlocks = 8;  // that every GPU with clusters has
  const Endpoint& endpoint = *only.endpoint;
  const bool small = only.op.bytes <= only.peer->stream().lanes().most_buffered(only.op.lane.lane);
  if (!of_lane(only.op) || !small || !endpoint.gpu()->clusters()) return 1;
  return std::bit_floor(blocks_for(only.op, endpoint.config(), kMostBlocks));
}

// Teams for each operation; those of one half of a lane share theirs and follow each other.
Layout lay_out(std::vector<Pending>& run, const cuda::Gpu& gpu) {
  const auto processors = static_cast<uint32_t>(gpu.facts().processors);
  const uint32_t most = processors / kOfPeers / static_cast<uint32_t>(run.size());
  Layout layout;
  if (run.size() == 1) layout.cluster = cluster_for(run.front());
  for (size_t i = 0; i < run.size(); ++i) {
    StreamOp& op = run[i].op;
    const StreamOp* before = nullptr;
    for (size_t k = 0; k < i && of_lane(op); ++k) {
      const bool same = run[k].peer == run[i].peer && run[k].op.kind == op.kind &&
                        run[k].op.lane.lane == op.lane.lane;
      if (same) before = &run[k].op;
    }
    op.first = before ? before->first : layout.teams;
    op.teams = before               ? before->teams
               : layout.cluster > 1 ? 1
                                    : blocks_for(op, run[i].endpoint->config(), most);
    op.lane.follows = before ? before->lane.token : 0;
    if (!before) layout.teams += op.teams;
  }
  return layout;
}

// Of the blocks of a launch in which a message may be put.
uint32_t shared_for(const std::vector<Pending>& run) {
  auto may_put = [](const Pending& one) {
    return one.op.kind == StreamKind::kSend && one.endpoint->gpu()->bulk_copies() &&
           one.op.bytes > one.peer->stream().lanes().most_buffered(one.op.lane.lane);
  };
  return std::any_of(run.begin(), run.end(), may_put) ? kernels::kBulkShared : 0;
}

template <typename Args>
Status launch_with(std::vector<Pending>& run, cuda::Function kernel, const Layout& layout) {
  auto args = std::make_unique<Args>();
  args->count = run.size();
  for (size_t i = 0; i < run.size(); ++i) args->ops[i] = run[i].op;
  cuda::Gpu& gpu = *run.front().endpoint->gpu();
  const cuda::Grid grid{layout.teams, kernels::kStreamThreads, 1, shared_for(run)};
  return gpu.launch_remote(run.front().stream, kernel, grid, args.get());
}

// A thread a line, where that is less than a block: fewer look at the ring, and begin sooner.
uint32_t threads_for(const StreamOp& op) {
  constexpr uint64_t kWarpBytes = 384;
  if (!of_lane(op)) return 32;
  if (op.bytes > kBlockBytes) return kernels::kStreamThreads;
  return static_cast<uint32_t>(std::max<uint64_t>(1, (op.bytes + kWarpBytes - 1) / kWarpBytes)) *
         32;
}

Status launch_one(const std::vector<Pending>& run, cuda::Function kernel, const Layout& layout) {
  const Pending& only = run.front();
  kernels::StreamArgs args{only.op};
  const cuda::Grid grid{layout.teams * layout.cluster, threads_for(only.op), layout.cluster,
                        shared_for(run)};
  return only.endpoint->gpu()->launch_remote(only.stream, kernel, grid, &args);
}

// The turns of all halves that a launch takes, in an order that is the same for everybody.
class Turns {
 public:
  explicit Turns(std::vector<Pending>& run) {
    std::vector<Mutex*> turns;
    for (Pending& one : run) {
      if (one.capturing || !of_lane(one.op)) continue;
      turns.push_back(&one.peer->stream().lanes().turn(one.op.lane.lane, side_of(one.op)));
    }
    std::sort(turns.begin(), turns.end(), std::less<>());
    turns.erase(std::unique(turns.begin(), turns.end()), turns.end());
    for (Mutex* turn : turns) held_.emplace_back(turn->native());
  }

 private:
  std::vector<std::unique_lock<std::mutex>> held_;
};

// What is launched while its lane is being reset would be refused there. Either side may reset it,
// so the caller need not know.
Status wait_for_reset(const Pending& one) {
  StreamLink& stream = one.peer->stream();
  const uint32_t lane = one.op.lane.lane;
  if (!of_lane(one.op) || one.capturing || !stream.is_resetting(lane)) return {};
  auto over = [&] { return !stream.is_resetting(lane) || !one.peer->usable().ok(); };
  if (!one.endpoint->wait_for(over, one.peer.get(), WaitKind::kConnect, 0, one.deadline)) {
    return error(OH_ERR_TIMEOUT,
                 "lane %u of %s is being reset, which did not end in time: a kernel of either side "
                 "is still at it",
                 lane, one.peer->pair().name.c_str());
  }
  return one.peer->usable();
}

// All of one stream and one GPU.
Status launch(std::vector<Pending>& run) {
  Pending& front = run.front();
  for (const Pending& one : run) OH_RETURN_IF_ERROR(wait_for_reset(one));
  const Turns turns(run);
  if (!front.capturing) {
    for (Pending& one : run) {
      if (!of_lane(one.op)) continue;
      OH_RETURN_IF_ERROR(
          one.peer->stream().lanes().order(one.op.lane.lane, side_of(one.op), one.stream));
    }
  }
  const Layout layout = lay_out(run, *front.endpoint->gpu());
  const StreamKernels& with = front.peer->stream().lanes().kernels();
  Status status = run.size() == 1 ? launch_one(run, with.one, layout)
                  : run.size() <= kernels::kFew
                      ? launch_with<kernels::StreamFewArgs>(run, with.few, layout)
                      : launch_with<kernels::StreamManyArgs>(run, with.many, layout);
  OH_RETURN_IF_ERROR(status);
  for (Pending& one : run) {
    Lanes& lanes = one.peer->stream().lanes();
    if (one.capturing) {
      lanes.keep();
      continue;
    }
    one.peer->stream().counts().count(one.op);
    if (of_lane(one.op)) {
      OH_RETURN_IF_ERROR(lanes.ordered(one.op.lane.lane, side_of(one.op), one.stream));
    }
  }
  return {};
}

// The memory of a message: where the peer may put into it, where that is a matter.
Status find_memory(Endpoint& endpoint, Peer& peer, const StreamCall& call, StreamOp* op) {
  if (call.size == 0) return {};
  const cuda::Gpu& gpu = *endpoint.gpu();
  Result<std::shared_ptr<const GpuExport>> found =
      GpuExports::instance().find(gpu.driver(), call.data, call.size);
  if (!found.ok()) {
    Result<MemoryFacts> facts = classify(gpu.driver(), call.data, call.size);
    OH_RETURN_IF_ERROR(facts.ok() && facts->placement == Placement::kHost ? Status()
                                                                          : found.status());
  }
  if (!found.ok() || !(*found)->for_kernels || (*found)->device != gpu.facts().ordinal) {
    return error(OH_ERR_INVALID,
                 "%llu bytes at %p are not memory of %s alone: the stream domain moves device "
                 "memory of the endpoint's GPU",
                 static_cast<unsigned long long>(call.size), call.data, gpu.facts().name.c_str());
  }
  const std::shared_ptr<const GpuExport>& exported = *found;
  const bool large = call.size > peer.stream().lanes().most_buffered(call.lane);
  if (call.kind != StreamKind::kRecv || !large) return {};
  const uint64_t offset = reinterpret_cast<uint64_t>(call.data) - exported->record.base;
  if (offset + call.size > kOffsets) return {};
  op->region = peer.stream().publish(exported);
  op->offset = offset;
  return {};
}

Status check_call(const StreamCall& call) {
  OH_RETURN_IF_ERROR(check_lane(call.lane));
  if (call.kind == StreamKind::kSend || call.kind == StreamKind::kRecv) {
    if (call.data || call.size == 0) return {};
    return error(OH_ERR_INVALID, "a buffer of %llu bytes at NULL",
                 static_cast<unsigned long long>(call.size));
  }
  if (call.slot < OH_SIGNAL_SLOTS) return {};
  return error(OH_ERR_INVALID, "signal slot %u: slots are 0 to %d", call.slot, OH_SIGNAL_SLOTS - 1);
}

}  // namespace

Status check_lane(uint32_t lane) {
  if (lane < OH_LANES) return {};
  return error(OH_ERR_INVALID, "lane %u: lanes are 0 to %d", lane, OH_LANES - 1);
}

Status warm_up(Endpoint& endpoint, Peer& peer, Deadline deadline) {
  OH_RETURN_IF_ERROR(endpoint.usable());
  OH_RETURN_IF_ERROR(peer.usable());
  StreamLink& stream = peer.stream();
  if (stream.is_ready()) return {};
  OH_RETURN_IF_ERROR(stream.prepare());
  auto known = [&] { return stream.is_ready() || !stream.why_not().ok() || !peer.usable().ok(); };
  if (!endpoint.wait_for(known, &peer, WaitKind::kConnect, 0, deadline)) {
    return error(OH_ERR_TIMEOUT, "the lanes of %s did not come in time: %s",
                 peer.pair().name.c_str(), stream.waits_for().c_str());
  }
  OH_RETURN_IF_ERROR(peer.usable());
  return stream.is_ready() ? Status() : stream.why_not();
}

Status reset_lane(Endpoint& endpoint, Peer& peer, uint32_t lane, Deadline deadline) {
  OH_RETURN_IF_ERROR(check_lane(lane));
  OH_RETURN_IF_ERROR(warm_up(endpoint, peer, deadline));
  StreamLink& stream = peer.stream();
  const uint64_t before = stream.resets(lane);
  stream.reset(lane);
  const cuda::Gpu& gpu = stream.lanes().gpu();
  auto done = [&] { return stream.resets(lane) != before || !peer.usable().ok() || gpu.is_lost(); };
  if (!endpoint.wait_for(done, &peer, WaitKind::kConnect, 0, deadline)) {
    return error(OH_ERR_TIMEOUT,
                 "lane %u of %s was not reset in time: a kernel of either side is still at it",
                 lane, peer.pair().name.c_str());
  }
  OH_RETURN_IF_ERROR(gpu.loss());
  return peer.usable();
}

Status call_stream(const std::shared_ptr<Endpoint>& endpoint, const std::shared_ptr<Peer>& peer,
                   const StreamCall& call, Deadline deadline) {
  OH_RETURN_IF_ERROR(check_call(call));
  OH_RETURN_IF_ERROR(endpoint->usable());
  OH_RETURN_IF_ERROR(peer->usable());
  StreamLink& stream = peer->stream();
  OH_RETURN_IF_ERROR(stream.why_not());
  Pending pending{endpoint, peer, call.stream, false, deadline, {}};
  OH_ASSIGN_OR_RETURN(pending.capturing, endpoint->gpu()->is_capturing(call.stream));
  if (!stream.is_ready()) {
    if (pending.capturing) {
      return error(
          OH_ERR_INVALID,
          "%s is not ready, and nothing can be prepared while its stream is captured: call "
          "oh_peer_warmup before",
          peer->pair().name.c_str());
    }
    OH_RETURN_IF_ERROR(warm_up(*endpoint, *peer, deadline));
  }
  StreamOp& op = pending.op;
  op.kind = call.kind;
  op.lane = stream.lanes().handle(call.lane);
  op.lane.timeout_ns = call.timeout_ns;
  op.lane.token = stream.lanes().next_token();
  op.data = reinterpret_cast<uint64_t>(call.data);
  op.bytes = call.size;
  op.size_from = reinterpret_cast<uint64_t>(call.size_from);
  op.size_to = reinterpret_cast<uint64_t>(call.size_to);
  op.slot = call.slot;
  if (of_lane(op)) {
    OH_RETURN_IF_ERROR(wait_for_reset(pending));
    OH_RETURN_IF_ERROR(stream.lanes().failure(call.lane, side_of(op)));
    OH_RETURN_IF_ERROR(find_memory(*endpoint, *peer, call, &op));
  }
  if (group().depth > 0) {
    group().pending.push_back(std::move(pending));
    return {};
  }
  std::vector<Pending> run;
  run.push_back(std::move(pending));
  return launch(run);
}

Status put_by_stream(Endpoint& endpoint, Peer& peer, const RemoteTarget& target,
                     const StreamPut& put) {
  OH_RETURN_IF_ERROR(endpoint.usable());
  OH_RETURN_IF_ERROR(peer.usable());
  OH_ASSIGN_OR_RETURN(oh_remote_memory memory, region_for_kernels(endpoint, peer, target));
  cuda::Gpu& gpu = *endpoint.gpu();
  OH_ASSIGN_OR_RETURN(bool capturing, gpu.is_capturing(put.stream));
  if (put.size == 0) return {};
  OH_RETURN_IF_ERROR(gpu.copy(put.stream, memory.base + put.offset,
                              reinterpret_cast<uint64_t>(put.data), put.size, nullptr, 0, 0));
  if (!capturing) peer.stream().counts().count_put(put.size);
  if (std::shared_ptr<ImportedBlock> import = target.import.lock()) {
    peer.stream().hold(put.stream, capturing, std::move(import));
  }
  return {};
}

Result<oh_remote_memory> region_for_kernels(Endpoint& endpoint, Peer& peer,
                                            const RemoteTarget& target) {
  if (!endpoint.gpu()) return peer.stream().why_not();
  if (target.on_device && peer.within_process() && endpoint.kernels_reach(target)) {
    return oh_remote_memory{target.base, target.length};
  }
  std::shared_ptr<ImportedBlock> import = target.import.lock();
  uint8_t* base =
      import && target.on_device ? import->translate(target.base, target.length) : nullptr;
  if (base) return oh_remote_memory{reinterpret_cast<uint64_t>(base), target.length};
  return error(OH_ERR_NOT_VIABLE,
               "the region of %s is not mapped on this GPU: put it by oh_peer_put, which finds "
               "another way",
               peer.pair().name.c_str());
}

void begin_group() { ++group().depth; }

Status end_group() {
  Group& ours = group();
  if (ours.depth == 0) return error(OH_ERR_INVALID, "no group has begun in this thread");
  if (--ours.depth > 0) return {};
  std::vector<Pending> pending = std::exchange(ours.pending, {});
  Status first;
  while (!pending.empty()) {
    std::vector<Pending> run;
    auto belongs = [&, stream = pending.front().stream,
                    gpu = pending.front().endpoint->gpu()](const Pending& one) {
      return one.stream == stream && one.endpoint->gpu() == gpu;
    };
    for (Pending& one : pending) {
      if (belongs(one)) run.push_back(one);
    }
    std::erase_if(pending, belongs);
    Status status;
    if (run.size() > kernels::kMany) {
      status = error(OH_ERR_INVALID, "%zu operations of one stream in a group: at most %u",
                     run.size(), kernels::kMany);
    } else {
      status = launch(run);
    }
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace oh
