// SPDX-License-Identifier: Apache-2.0
#include "stream/stream_launch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/fault.h"
#include "stream/proxy/proxy_calls.h"

namespace oh {

using kernels::StreamKind;

namespace {

// Whether the message may be one that does not go by lines.
bool is_large(const PendingOp& one) {
  return of_lane(one.op) &&
         one.op.bytes > one.peer->stream().lanes().most_buffered(one.op.lane.lane);
}

Layout divide(std::vector<PendingOp>& run, const cuda::Gpu& gpu, const StreamKernels& with) {
  std::vector<LayoutOp> ops;
  ops.reserve(run.size());
  for (PendingOp& one : run) {
    const Config& config = one.endpoint->config();
    ops.push_back({.op = &one.op,
                   .peer = one.peer.get(),
                   .expects_put = one.expects_put,
                   .large = is_large(one),
                   .most = static_cast<uint32_t>(config.stream_blocks),
                   .per_block = static_cast<uint64_t>(config.stream_share)});
  }
  return lay_out(ops, {.processors = static_cast<uint32_t>(gpu.facts().processors),
                       .clusters = with.clusters,
                       .begins_early = with.clusters && gpu.kernels().begins_early()});
}

cuda::Grid grid_of(const std::vector<PendingOp>& run, const Layout& layout,
                   const StreamKernels& with) {
  // A signal covers stores of earlier kernels in the peer's memory. Only the end of those kernels
  // orders them before the signal.
  const bool signals = std::any_of(run.begin(), run.end(), [](const PendingOp& one) {
    return one.op.kind == StreamKind::kSignal;
  });
  return {layout.teams * layout.cluster, layout.threads, layout.cluster,
          /*early=*/with.clusters && !signals};
}

template <typename Args>
Status launch_with(std::vector<PendingOp>& run, cuda::Function kernel, const cuda::Grid& grid) {
  auto args = std::make_unique<Args>();
  args->count = run.size();
  for (size_t i = 0; i < run.size(); ++i) args->ops[i] = run[i].op;
  cuda::Gpu& gpu = *run.front().endpoint->device().gpu();
  return gpu.kernels().launch_remote(run.front().stream, kernel, grid, args.get());
}

// The kernel of small messages has no code for several teams of clusters.
static_assert(Config::kMostStreamSmall <= kMostOfOneTeam);

Status launch_one(const PendingOp& only, const StreamKernels& with, const cuda::Grid& grid) {
  kernels::StreamArgs args{only.op};
  return only.endpoint->device().gpu()->kernels().launch_remote(
      only.stream, is_large(only) ? with.large : with.one, grid, &args);
}

// The turns of all halves that a launch uses, and where it is tracked for its other operations.
HeldTurns turns_of(const std::vector<PendingOp>& run, cuda::Gpu& gpu) {
  std::vector<LaunchTurn*> turns;
  std::vector<Launches*> apart;
  for (const PendingOp& one : run) {
    if (one.capturing) continue;
    Lanes& lanes = one.peer->stream().lanes();
    if (of_lane(one.op)) turns.push_back(&lanes.turn(one.op.lane.lane, side_of(one.op)));
    if (!of_lane(one.op)) apart.push_back(&lanes.apart());
  }
  return HeldTurns(std::move(turns), std::move(apart), gpu, run.front().stream);
}

bool waits_for_reset(const PendingOp& one) {
  return of_lane(one.op) && !one.capturing && one.peer->stream().is_resetting(one.op.lane.lane);
}

// Takes the turns of a launch. No lane of it is being reset while they are held: a reset that
// begins now waits until the launch has ended (LaunchTurn::is_through()).
Status take_turns(const std::vector<PendingOp>& run, cuda::Gpu& gpu,
                  std::optional<HeldTurns>* turns) {
  OH_FAULT_POINT("stream.turns");
  turns->emplace(turns_of(run, gpu));
  while (std::any_of(run.begin(), run.end(), waits_for_reset)) {
    turns->reset();
    for (const PendingOp& one : run) OH_RETURN_IF_ERROR(wait_for_reset(one));
    turns->emplace(turns_of(run, gpu));
  }
  return {};
}

Status launch_by_kernels(std::vector<PendingOp>& run) {
  PendingOp& front = run.front();
  cuda::Gpu& gpu = *front.endpoint->device().gpu();
  std::optional<HeldTurns> turns;
  OH_RETURN_IF_ERROR(take_turns(run, gpu, &turns));
  OH_RETURN_IF_ERROR(turns->follow());
  const StreamKernels& with = front.peer->stream().lanes().kernels();
  const cuda::Grid grid = grid_of(run, divide(run, gpu, with), with);
  Status status = run.size() == 1 ? launch_one(front, with, grid)
                  : run.size() <= kernels::kFew
                      ? launch_with<kernels::StreamFewArgs>(run, with.few, grid)
                      : launch_with<kernels::StreamManyArgs>(run, with.many, grid);
  OH_RETURN_IF_ERROR(status);
  for (PendingOp& one : run) {
    StreamLink& stream = one.peer->stream();
    one.capturing ? stream.lanes().keep() : stream.counts().count(one.op);
  }
  return turns->launched();
}

}  // namespace

Status wait_for_reset(const PendingOp& one) {
  if (!waits_for_reset(one)) return {};
  StreamLink& stream = one.peer->stream();
  const uint32_t lane = one.op.lane.lane;
  auto over = [&] { return !stream.is_resetting(lane) || !one.peer->usable().ok(); };
  if (!one.endpoint->requests().wait_for(over, one.peer.get(), WaitKind::kConnect, 0,
                                         one.deadline)) {
    return timed_out(one.deadline.length(),
                     "lane %u of %s is being reset, and a kernel of either side still uses it: "
                     "synchronize the streams of both sides, and call again",
                     lane, one.peer->link().name.c_str());
  }
  return one.peer->usable();
}

Status launch(std::vector<PendingOp>& run) {
  for (const PendingOp& one : run) OH_RETURN_IF_ERROR(wait_for_reset(one));
  const cuda::Stream stream = run.front().stream;
  const bool capturing = run.front().capturing;
  std::vector<ProxyCall> proxied;
  std::erase_if(run, [&](const PendingOp& one) {
    const bool by_proxy = one.peer->stream().by_proxy();
    if (by_proxy) proxied.push_back({one.endpoint, one.peer, one.op});
    return by_proxy;
  });
  if (proxied.empty()) return launch_by_kernels(run);
  if (run.empty()) return launch_by_proxy(proxied, stream, capturing);
  return launch_beside(proxied, stream, capturing, [&] { return launch_by_kernels(run); });
}

}  // namespace oh
