// SPDX-License-Identifier: Apache-2.0
#include "stream/stream_atomics.h"

#include <utility>

#include "kernels/atomic.h"
#include "stream/mapped_region.h"
#include "stream/proxy/proxy_calls.h"
#include "stream/stream_calls.h"

namespace oh {
namespace {

// Checks the memory for the result.
Status check_before(const cuda::Gpu& gpu, const uint64_t* before) {
  if (!before) return {};
  OH_RETURN_IF_ERROR(memory_for_kernels(gpu, before, sizeof(*before)).status());
  if (AtomicOp::fits(reinterpret_cast<uint64_t>(before))) return {};
  return error(OH_ERR_INVALID, "the result of an atomic operation goes to %p: no multiple of 8",
               static_cast<const void*>(before));
}

// Maps a region on which a kernel of this GPU can carry out atomic operations.
Result<MappedRegion> map_for_atomics(Endpoint& endpoint, Peer& peer, const RemoteTarget& target) {
  const StreamLink& stream = peer.stream();
  Result<MappedRegion> mapped = MappedRegion();
  std::string why;
  if (stream.by_proxy()) {
    why = stream.why_no_kernels();
  } else {
    mapped = map_region(endpoint, peer, target, RegionIn::kDevice);
    if (mapped.status().code() == OH_ERR_RETIRED) return mapped;
    // Memory that was freed behind the region's end is not mapped any more.
    if (!mapped.ok()) OH_RETURN_IF_ERROR(peer.operations().one_sided().still_registered(target));
    why = mapped.ok() ? target.why_no_atomics
                      : "it is not mapped on this GPU, as memory of cudaMalloc or VMM would be";
  }
  if (why.empty()) return mapped;
  return error(OH_ERR_NOT_VIABLE,
               "the region of %s is memory of a GPU, where only a kernel carries out atomic "
               "operations, and no kernel of onehop can: %s",
               peer.link().name.c_str(), why.c_str());
}

Status launch_atomic(Endpoint& endpoint, Peer& peer, const StreamAtomic& call, uint64_t word,
                     uint64_t before) {
  if (!AtomicOp::fits(word)) {
    return error(OH_ERR_INVALID, "the block of %s is not aligned as its addresses say",
                 peer.link().name.c_str());
  }
  kernels::AtomicArgs args{
      word, call.op.value, call.op.expected, before, static_cast<kernels::AtomicKind>(call.op.kind),
      0};
  cuda::Gpu& gpu = *endpoint.device().gpu();
  // Not an early launch: the end of earlier kernels must order their stores before the operation.
  return gpu.kernels().launch_remote(call.stream, peer.stream().lanes().kernels().atomic, {},
                                     &args);
}

Status enqueue_by_kernel(Endpoint& endpoint, Peer& peer, const RemoteTarget& target,
                         const StreamAtomic& call, bool capturing) {
  OH_ASSIGN_OR_RETURN(MappedRegion mapped, map_for_atomics(endpoint, peer, target));
  Status status = launch_atomic(endpoint, peer, call, mapped.base + call.offset,
                                reinterpret_cast<uint64_t>(call.before));
  // Needed without an import, too: hold() keeps the Gpu, which owns the kernel.
  peer.stream().memory().hold(call.stream, capturing, std::move(mapped.import));
  return status;
}

Status enqueue_by_proxy(const std::shared_ptr<Endpoint>& endpoint,
                        const std::shared_ptr<Peer>& peer, const RemoteTarget& target,
                        const StreamAtomic& call, bool capturing) {
  StreamLink& stream = peer->stream();
  if (!stream.by_proxy()) {
    return error(OH_ERR_NOT_VIABLE,
                 "the region of %s is host memory, which kernels do not reach: use "
                 "oh_peer_fetch_add or oh_peer_compare_swap",
                 peer->link().name.c_str());
  }
  stream.proxy().know(target);
  const bool adds = call.op.kind == AtomicOp::Kind::kAdd;
  const uint64_t way = adds ? kernels::kOfAdd : kernels::kOfCompareSwap;
  ProxyCall proxied{endpoint, peer};
  proxied.op.data = call.op.value;
  proxied.op.bytes = call.op.expected;
  proxied.op.size_to = reinterpret_cast<uint64_t>(call.before);
  proxied.op.lane.timeout_ns = call.timeout_ns;
  proxied.place = kernels::ProxyPlace{target.index | way, target.version, call.offset};
  return launch_by_proxy({proxied}, call.stream, capturing);
}

// Resources of a kernel that the host waits for; given back when it has ended.
struct KernelRun {
  explicit KernelRun(std::shared_ptr<cuda::Gpu> on) : gpu(std::move(on)) {}
  ~KernelRun() {
    if (before.host) gpu->give_word(before);
    if (stream) gpu->give_stream(stream);
  }
  KernelRun(const KernelRun&) = delete;
  KernelRun& operator=(const KernelRun&) = delete;
  Status start() {
    OH_ASSIGN_OR_RETURN(stream, gpu->take_stream());
    OH_ASSIGN_OR_RETURN(before, gpu->take_word());
    return {};
  }

  const std::shared_ptr<cuda::Gpu> gpu;
  std::shared_ptr<ImportedBlock> import = {};
  cuda::Stream stream = nullptr;
  cuda::DoneWord before = {};
};

}  // namespace

Result<uint64_t> run_atomic_on_device(Endpoint& endpoint, Peer& peer, const RemoteTarget& target,
                                      uint64_t offset, const AtomicOp& op, Deadline deadline) {
  OH_RETURN_IF_ERROR(check_word(target, offset));
  OH_RETURN_IF_ERROR(warm_up(endpoint, peer, deadline));
  OH_ASSIGN_OR_RETURN(MappedRegion mapped, map_for_atomics(endpoint, peer, target));
  auto run = std::make_shared<KernelRun>(endpoint.device().gpu());
  OH_RETURN_IF_ERROR(run->start());
  run->import = std::move(mapped.import);
  const cuda::Gpu& gpu = *run->gpu;
  StreamAtomic call;
  call.op = op;
  call.stream = run->stream;
  Status status = launch_atomic(endpoint, peer, call, mapped.base + offset, run->before.device);
  if (status.ok() && run->gpu->wait_idle(run->stream, deadline)) {
    OH_RETURN_IF_ERROR(gpu.loss());
    // acquire: the value that the kernel stored, and what the peer stored before it, are visible.
    return run->before.host->load(std::memory_order_acquire);
  }
  const cuda::Stream stream = run->stream;
  peer.stream().memory().hold(stream, /*capturing=*/false, std::move(run));
  OH_RETURN_IF_ERROR(status);
  return timed_out(deadline.length(),
                   "%s has not carried out an atomic operation on memory of %s, which it may yet: "
                   "other kernels have all of the GPU",
                   gpu.facts().name.c_str(), peer.link().name.c_str());
}

Status atomic_by_stream(const std::shared_ptr<Endpoint>& endpoint,
                        const std::shared_ptr<Peer>& peer, const RemoteTarget& target,
                        const StreamAtomic& call) {
  OH_RETURN_IF_ERROR(endpoint->usable());
  OH_RETURN_IF_ERROR(peer->usable());
  OH_RETURN_IF_ERROR(check_word(target, call.offset));
  OH_RETURN_IF_ERROR(peer->stream().why_not());
  OH_RETURN_IF_ERROR(check_before(*endpoint->device().gpu(), call.before));
  // Only a connected link knows whether its streams use kernels or a proxy.
  OH_ASSIGN_OR_RETURN(const bool capturing,
                      connect_for(*endpoint, *peer, call.stream, call.deadline));
  if (target.on_device) return enqueue_by_kernel(*endpoint, *peer, target, call, capturing);
  return enqueue_by_proxy(endpoint, peer, target, call, capturing);
}

}  // namespace oh
