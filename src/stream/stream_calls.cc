// SPDX-License-Identifier: Apache-2.0
#include "stream/stream_calls.h"

#include <utility>

#include "device/locate.h"
#include "stream/proxy/proxy_calls.h"
#include "stream/stream_launch.h"

namespace oh {

using kernels::StreamKind;
using kernels::StreamOp;

namespace {

constexpr uint64_t kOffsets = uint64_t{1} << 48;  // limit of a posting's offset

struct Group {
  uint32_t depth = 0;
  std::vector<PendingOp> pending;
};

Group& group() {
  thread_local Group ours;
  return ours;
}

// Checks the memory of a message. Publishes that of a large receive, so that the peer's kernels can
// put into it.
Status find_memory(Endpoint& endpoint, Peer& peer, const StreamCall& call, PendingOp* pending) {
  if (call.size == 0) return {};
  OH_ASSIGN_OR_RETURN(const std::shared_ptr<const GpuExport> exported,
                      memory_for_kernels(*endpoint.device().gpu(), call.data, call.size));
  if (peer.stream().by_proxy()) return {};
  const bool large = call.size > peer.stream().lanes().most_buffered(call.lane);
  if (call.kind != StreamKind::kRecv || !large) return {};
  const uint64_t offset = reinterpret_cast<uint64_t>(call.data) - exported->record.base;
  if (offset + call.size > kOffsets) return {};
  const StreamMemory::Published published = peer.stream().memory().publish(exported);
  pending->op.region = published.number;
  pending->op.offset = offset;
  pending->expects_put = published.reached;
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

Result<std::shared_ptr<const GpuExport>> memory_for_kernels(const cuda::Gpu& gpu, const void* data,
                                                            uint64_t size) {
  Result<std::shared_ptr<const GpuExport>> found =
      GpuExports::instance().find(gpu.driver(), data, size);
  if (!found.ok()) {
    Result<MemoryFacts> facts = classify(gpu.driver(), data, size);
    OH_RETURN_IF_ERROR(facts.ok() && facts->placement == Placement::kHost ? Status()
                                                                          : found.status());
  }
  if (found.ok() && (*found)->for_kernels && (*found)->device == gpu.facts().ordinal) return found;
  return error(OH_ERR_INVALID,
               "%llu bytes at %p are not memory of %s alone: the stream domain moves device memory "
               "of the endpoint's GPU",
               static_cast<unsigned long long>(size), data, gpu.facts().name.c_str());
}

Result<bool> connect_for(Endpoint& endpoint, Peer& peer, cuda::Stream stream, Deadline deadline) {
  OH_ASSIGN_OR_RETURN(const bool capturing, endpoint.device().gpu()->is_capturing(stream));
  if (peer.stream().is_ready()) return capturing;
  if (capturing) {
    return error(OH_ERR_INVALID,
                 "%s is not ready, and nothing can be prepared while its stream is captured: call "
                 "oh_peer_warmup before",
                 peer.link().name.c_str());
  }
  OH_RETURN_IF_ERROR(warm_up(endpoint, peer, deadline));
  return capturing;
}

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
  if (!endpoint.requests().wait_for(known, &peer, WaitKind::kConnect, 0, deadline)) {
    return timed_out(deadline.length(), "the lanes of %s are not connected: %s",
                     peer.link().name.c_str(), stream.waits_for().c_str());
  }
  OH_RETURN_IF_ERROR(peer.usable());
  return stream.is_ready() ? Status() : stream.why_not();
}

Status reset_lane(Endpoint& endpoint, Peer& peer, uint32_t lane, Deadline deadline) {
  OH_RETURN_IF_ERROR(check_lane(lane));
  OH_RETURN_IF_ERROR(warm_up(endpoint, peer, deadline));
  StreamLink& stream = peer.stream();
  const uint64_t before = stream.resets(lane);
  stream.reset(lane, before);
  const cuda::Gpu& gpu = *endpoint.device().gpu();
  auto done = [&] { return stream.resets(lane) != before || !peer.usable().ok() || gpu.is_lost(); };
  if (!endpoint.requests().wait_for(done, &peer, WaitKind::kConnect, 0, deadline)) {
    return timed_out(deadline.length(),
                     "lane %u of %s was not reset, for a kernel of either side still uses it: "
                     "synchronize the streams of both sides, and call again",
                     lane, peer.link().name.c_str());
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
  PendingOp pending{endpoint, peer, call.stream, false, deadline};
  // A group queries the driver once, at its end.
  const bool grouped = group().depth > 0;
  const bool ask = !grouped || !stream.is_ready() || stream.is_resetting(call.lane);
  if (ask) {
    OH_ASSIGN_OR_RETURN(pending.capturing, connect_for(*endpoint, *peer, call.stream, deadline));
  }
  StreamOp& op = pending.op;
  op.kind = call.kind;
  if (stream.by_kernels()) op.lane = stream.lanes().handle(call.lane);
  if (stream.by_kernels()) op.lane.token = stream.lanes().next_token();
  op.lane.lane = call.lane;
  op.lane.timeout_ns = call.timeout_ns;
  op.data = reinterpret_cast<uint64_t>(call.data);
  op.bytes = call.size;
  op.size_from = reinterpret_cast<uint64_t>(call.size_from);
  op.size_to = reinterpret_cast<uint64_t>(call.size_to);
  op.slot = call.slot;
  if (of_lane(op)) {
    if (ask) OH_RETURN_IF_ERROR(wait_for_reset(pending));
    OH_RETURN_IF_ERROR(stream.failure(call.lane, side_of(op)));
    OH_RETURN_IF_ERROR(find_memory(*endpoint, *peer, call, &pending));
  }
  if (grouped) {
    group().pending.push_back(std::move(pending));
    return {};
  }
  std::vector<PendingOp> run;
  run.push_back(std::move(pending));
  return launch(run);
}

Result<oh_lane_target> target_for_kernels(Endpoint& endpoint, Peer& peer, void* data, uint64_t size,
                                          Deadline deadline) {
  OH_RETURN_IF_ERROR(warm_up(endpoint, peer, deadline));
  OH_ASSIGN_OR_RETURN(const std::shared_ptr<const GpuExport> exported,
                      memory_for_kernels(*endpoint.device().gpu(), data, size));
  if (peer.stream().by_proxy()) {
    return error(OH_ERR_NOT_VIABLE, "kernels may not use the link to %s: %s",
                 peer.link().name.c_str(), peer.stream().why_no_kernels().c_str());
  }
  const auto base = reinterpret_cast<uint64_t>(data);
  const uint64_t offset = base - exported->record.base;
  const uint32_t number =
      offset + size > kOffsets ? 0 : peer.stream().memory().publish(exported).number;
  if (number != 0) return oh_lane_target{base, size, offset, number, 0};
  return error(OH_ERR_NOT_VIABLE, "%llu bytes at %p cannot be mapped by %s: %s",
               static_cast<unsigned long long>(size), data, peer.link().name.c_str(),
               exported->mappable() ? "its GPU does not reach them" : exported->why_not.c_str());
}

namespace {

// Operations of one stream and GPU.
Status launch_group(std::vector<PendingOp>& run) {
  if (run.size() > kernels::kMany) {
    return error(OH_ERR_INVALID, "%zu operations of one stream in a group: at most %u", run.size(),
                 kernels::kMany);
  }
  cuda::Gpu& gpu = *run.front().endpoint->device().gpu();
  OH_ASSIGN_OR_RETURN(const bool capturing, gpu.is_capturing(run.front().stream));
  for (PendingOp& one : run) one.capturing = capturing;
  return launch(run);
}

}  // namespace

void begin_group() { ++group().depth; }

Status end_group() {
  Group& ours = group();
  if (ours.depth == 0) return error(OH_ERR_INVALID, "no group has begun in this thread");
  if (--ours.depth > 0) return {};
  std::vector<PendingOp> pending = std::exchange(ours.pending, {});
  Status first;
  while (!pending.empty()) {
    std::vector<PendingOp> run;
    auto belongs = [&, stream = pending.front().stream,
                    gpu = pending.front().endpoint->device().gpu()](const PendingOp& one) {
      return one.stream == stream && one.endpoint->device().gpu() == gpu;
    };
    for (PendingOp& one : pending) {
      if (belongs(one)) run.push_back(one);
    }
    std::erase_if(pending, belongs);
    Status status = launch_group(run);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace oh
