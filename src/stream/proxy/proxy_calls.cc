// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/proxy_calls.h"

#include <algorithm>
#include <utility>

namespace oh {

using kernels::ProxyOp;
using kernels::StreamKind;
using kernels::StreamOp;

namespace {

uint32_t queue_of(const ProxyCall& call) {
  const StreamOp& op = call.op;
  if (call.place) return kernels::kMoveQueue;
  switch (op.kind) {
    case StreamKind::kSend:
      return op.lane.lane;
    case StreamKind::kRecv:
      return OH_LANES + op.lane.lane;
    case StreamKind::kSignal:
      return kernels::kSignalQueue;
    case StreamKind::kWait:
      break;
  }
  return kernels::kWaitQueues + op.slot;
}

bool of_lane(const ProxyOp& op) { return op.index < kernels::kProxyLanes; }

ProxyOp op_of(const ProxyCall& call) {
  const StreamOp& given = call.op;
  ProxyOp op = call.peer->stream().proxy().memory()->op(queue_of(call));
  op.data = op.index == kernels::kSignalQueue ? given.slot : given.data;
  op.bytes = given.bytes;
  if (call.place) op.place = *call.place;
  if (given.kind == StreamKind::kSend) op.size_from = given.size_from;
  if (given.kind == StreamKind::kRecv || call.place) op.size_to = given.size_to;
  op.timeout_ns = given.lane.timeout_ns;
  return op;
}

// One block for each queue: a wait blocks only later operations of its queue.
uint32_t lay_out(kernels::ProxyArgs* args) {
  uint32_t blocks = 0;
  for (uint64_t i = 0; i < args->count; ++i) {
    ProxyOp& op = args->ops[i];
    const ProxyOp* before =
        std::find_if(args->ops, &op, [&](const ProxyOp& other) { return other.queue == op.queue; });
    op.block = before != &op ? before->block : blocks++;
  }
  return blocks;
}

}  // namespace

Status launch_by_proxy(const std::vector<ProxyCall>& calls, cuda::Stream stream, bool capturing) {
  cuda::Gpu& gpu = *calls.front().endpoint->device().gpu();
  auto args = std::make_unique<kernels::ProxyArgs>();
  std::vector<LaunchTurn*> halves;
  std::vector<Launches*> apart;
  for (const ProxyCall& call : calls) {
    StreamProxy& proxy = call.peer->stream().proxy();
    const ProxyOp& op = args->ops[args->count++] = op_of(call);
    proxy.use(op.index);
    if (capturing) continue;
    if (of_lane(op)) halves.push_back(&proxy.memory()->turn(op.index));
    if (!of_lane(op)) apart.push_back(&proxy.memory()->apart());
  }
  HeldTurns turns(std::move(halves), std::move(apart), gpu, stream);
  OH_RETURN_IF_ERROR(turns.follow());
  const uint32_t blocks = lay_out(args.get());
  cuda::Function kernel = calls.front().peer->stream().proxy().memory()->kernel();
  OH_RETURN_IF_ERROR(
      gpu.kernels().launch_remote(stream, kernel, {blocks, kernels::kProxyThreads}, args.get()));
  // The kernel runs even if a later step fails: keep its memory, and serve its tickets.
  Status status = turns.launched();
  for (const ProxyCall& call : calls) {
    if (capturing) call.peer->stream().proxy().memory()->keep();
  }
  // The progress thread may be asleep.
  full_fence();
  for (const ProxyCall& call : calls) call.endpoint->doorbell().ring();
  return status;
}

Status launch_beside(const std::vector<ProxyCall>& calls, cuda::Stream stream, bool capturing,
                     const std::function<Status()>& others) {
  const std::shared_ptr<ProxyMemory>& memory = calls.front().peer->stream().proxy().memory();
  OH_ASSIGN_OR_RETURN(ProxyMemory::Branch branch, memory->fork(stream, capturing));
  Status status = launch_by_proxy(calls, branch.stream, capturing);
  if (status.ok()) status = others();
  // After errors, too: a branch forked from a capture must join it.
  Status joined = memory->join(branch, stream, capturing);
  return status.ok() ? joined : status;
}

}  // namespace oh
