// SPDX-License-Identifier: Apache-2.0
#include "stream/stream_calls.h"

#include "capi/batch_check.h"
#include "capi/one_sided.h"
#include "stream/mapped_region.h"
#include "stream/stream_atomics.h"
#include "stream/stream_moves.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

namespace {

Status read_call(const oh_peer& peer, const oh_stream_options* given, StreamCall* call,
                 Deadline* deadline) {
  oh_stream_options options;
  OH_RETURN_IF_ERROR(read_options(given, &options));
  OH_RETURN_IF_ERROR(check_timeout(options.timeout_ns));
  const int64_t standard = peer.endpoint->config().timeout_ns();
  const int64_t timeout = options.timeout_ns == OH_TIMEOUT_DEFAULT ? standard : options.timeout_ns;
  call->timeout_ns = timeout == OH_TIMEOUT_NEVER ? UINT64_MAX : static_cast<uint64_t>(timeout);
  call->lane = options.lane;
  call->size_from = options.size_from;
  call->size_to = options.size_to;
  *deadline = deadline_after(options.timeout_ns, peer.endpoint->config());
  return {};
}

oh_status run(oh_peer* peer, StreamCall call, const oh_stream_options* options) {
  Deadline deadline = Deadline::never();
  OH_REPORT_IF_ERROR(read_call(*peer, options, &call, &deadline));
  return report(call_stream(peer->endpoint, peer->peer, call, deadline));
}

// Groups compare stream handles. The legacy default stream has two: map them to one.
cuda::Stream as_stream(void* stream) {
  const auto handle = static_cast<cuda::Stream>(stream);
  return reinterpret_cast<uint64_t>(handle) == cuda::kStreamLegacy ? nullptr : handle;
}

// Returns a lane for use by the caller's kernels.
Result<oh_lane_handle> lane_for_kernels(Endpoint& endpoint, Peer& peer, uint32_t lane,
                                        Deadline deadline) {
  OH_RETURN_IF_ERROR(warm_up(endpoint, peer, deadline));
  StreamLink& stream = peer.stream();
  if (stream.by_proxy()) {
    return error(OH_ERR_NOT_VIABLE, "kernels may not use the link to %s: %s",
                 peer.link().name.c_str(), stream.why_no_kernels().c_str());
  }
  oh_lane_handle handle = stream.lanes().handle(lane);
  handle.timeout_ns = static_cast<uint64_t>(endpoint.config().timeout_ns());
  return handle;
}

// Uses the default timeout.
oh_status move(const oh_peer& peer, void* stream, std::span<const MovePart> parts, bool put) {
  StreamCall call;
  Deadline deadline = Deadline::never();
  OH_REPORT_IF_ERROR(read_call(peer, nullptr, &call, &deadline));
  return report(move_by_stream(peer.endpoint, peer.peer,
                               {put, parts, as_stream(stream), call.timeout_ns, deadline}));
}

// `data` is not const because a get writes it; a put only reads it.
oh_status move_one(const oh_peer& peer, void* stream, void* data, const oh_remote_region& remote,
                   size_t remote_offset, size_t size, bool put) {
  OH_REPORT_IF_ERROR(check_buffer(data, size));
  OH_REPORT_IF_ERROR(check_piece(remote, remote_offset, size));
  OH_REPORT_IF_ERROR(check_remote(remote, peer, put));
  const Block block{static_cast<uint8_t*>(data), remote_offset, size};
  MovePart part{remote.attached->target, data, size};
  if (size > 0) part.blocks = {&block, 1};
  part.count = part.blocks.size();
  part.bytes = size;
  return move(peer, stream, {&part, 1}, put);
}

// `before` is device memory and may be null.
oh_status run_atomic(oh_peer* peer, void* stream, oh_remote_region* remote, size_t remote_offset,
                     const AtomicOp& op, uint64_t* before) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  OH_REPORT_IF_ERROR(check_piece(*remote, remote_offset, sizeof(*before)));
  OH_REPORT_IF_ERROR(check_remote(*remote, *peer, /*put=*/true));
  StreamCall call;
  Deadline deadline = Deadline::never();
  OH_REPORT_IF_ERROR(read_call(*peer, nullptr, &call, &deadline));
  return report(atomic_by_stream(peer->endpoint, peer->peer, remote->attached->target,
                                 {.offset = remote_offset,
                                  .op = op,
                                  .before = before,
                                  .stream = as_stream(stream),
                                  .timeout_ns = call.timeout_ns,
                                  .deadline = deadline}));
}

oh_status move_batch(const oh_peer& peer, void* stream, Result<CheckedBatch> batch) {
  OH_REPORT_IF_ERROR(batch.status());
  return move(peer, stream, batch->parts, batch->put);
}

}  // namespace

extern "C" {

oh_status oh_peer_warmup(oh_peer* peer, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(peer);
  Result<Deadline> deadline = deadline_of(timeout_ns, peer->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  return report(warm_up(*peer->endpoint, *peer->peer, *deadline));
}

oh_status oh_comm_warmup(oh_comm* comm, const int32_t* ranks, size_t count, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(comm);
  if (count > 0) OH_CHECK_ARGUMENT(ranks);
  Result<Deadline> deadline = deadline_of(timeout_ns, comm->endpoint.endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  for (size_t i = 0; i < count; ++i) {
    if (ranks[i] < 0) {
      return report(error(OH_ERR_INVALID, "rank %d: ranks begin at 0", static_cast<int>(ranks[i])));
    }
    Result<std::shared_ptr<Peer>> peer =
        comm->comm->peer(static_cast<uint32_t>(ranks[i]), *deadline);
    OH_REPORT_IF_ERROR(peer.status());
    OH_REPORT_IF_ERROR(warm_up(*comm->endpoint.endpoint, **peer, *deadline));
  }
  return OH_OK;
}

oh_status oh_peer_stream_send(oh_peer* peer, void* stream, const void* data, size_t size,
                              const oh_stream_options* options) {
  OH_CHECK_ARGUMENT(peer);
  StreamCall call;
  call.kind = kernels::StreamKind::kSend;
  call.stream = as_stream(stream);
  call.data = const_cast<void*>(data);
  call.size = size;
  return run(peer, call, options);
}

oh_status oh_peer_stream_recv(oh_peer* peer, void* stream, void* data, size_t capacity,
                              const oh_stream_options* options) {
  OH_CHECK_ARGUMENT(peer);
  StreamCall call;
  call.kind = kernels::StreamKind::kRecv;
  call.stream = as_stream(stream);
  call.data = data;
  call.size = capacity;
  return run(peer, call, options);
}

oh_status oh_peer_stream_put(oh_peer* peer, void* stream, const void* data,
                             oh_remote_region* remote, size_t remote_offset, size_t size) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  return move_one(*peer, stream, const_cast<void*>(data), *remote, remote_offset, size,
                  /*put=*/true);
}

oh_status oh_peer_stream_get(oh_peer* peer, void* stream, void* data, oh_remote_region* remote,
                             size_t remote_offset, size_t size) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  return move_one(*peer, stream, data, *remote, remote_offset, size, /*put=*/false);
}

oh_status oh_peer_stream_put_batch(oh_peer* peer, void* stream, oh_remote_region* remote,
                                   const oh_batch* batch) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  OH_CHECK_ARGUMENT(batch);
  return move_batch(*peer, stream, read_batch(*peer, *remote, *batch, /*put=*/true));
}

oh_status oh_peer_stream_get_batch(oh_peer* peer, void* stream, oh_remote_region* remote,
                                   const oh_batch* batch) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  OH_CHECK_ARGUMENT(batch);
  return move_batch(*peer, stream, read_batch(*peer, *remote, *batch, /*put=*/false));
}

oh_status oh_peer_stream_put_regions(oh_peer* peer, void* stream, const oh_region_batch* batch) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(batch);
  return move_batch(*peer, stream, read_batch(*peer, *batch, /*put=*/true));
}

oh_status oh_peer_stream_get_regions(oh_peer* peer, void* stream, const oh_region_batch* batch) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(batch);
  return move_batch(*peer, stream, read_batch(*peer, *batch, /*put=*/false));
}

oh_status oh_peer_stream_fetch_add(oh_peer* peer, void* stream, oh_remote_region* remote,
                                   size_t remote_offset, uint64_t value, uint64_t* before) {
  return run_atomic(peer, stream, remote, remote_offset, {AtomicOp::Kind::kAdd, value}, before);
}

oh_status oh_peer_stream_compare_swap(oh_peer* peer, void* stream, oh_remote_region* remote,
                                      size_t remote_offset, uint64_t expected, uint64_t value,
                                      uint64_t* before) {
  return run_atomic(peer, stream, remote, remote_offset,
                    {AtomicOp::Kind::kCompareSwap, value, expected}, before);
}

oh_status oh_peer_stream_signal(oh_peer* peer, void* stream, uint32_t slot, uint64_t count) {
  OH_CHECK_ARGUMENT(peer);
  StreamCall call;
  call.kind = kernels::StreamKind::kSignal;
  call.stream = as_stream(stream);
  call.size = count;
  call.slot = slot;
  return run(peer, call, nullptr);
}

oh_status oh_peer_stream_wait_signal(oh_peer* peer, void* stream, uint32_t slot, uint64_t count,
                                     const oh_stream_options* options) {
  OH_CHECK_ARGUMENT(peer);
  StreamCall call;
  call.kind = kernels::StreamKind::kWait;
  call.stream = as_stream(stream);
  call.size = count;
  call.slot = slot;
  return run(peer, call, options);
}

oh_status oh_group_begin(void) {
  begin_group();
  return OH_OK;
}

oh_status oh_group_end(void) { return report(end_group()); }

oh_status oh_peer_device_handle(oh_peer* peer, uint32_t lane, oh_lane_handle* handle) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(handle);
  OH_REPORT_IF_ERROR(check_lane(lane));
  Result<oh_lane_handle> found =
      lane_for_kernels(*peer->endpoint, *peer->peer, lane,
                       deadline_after(OH_TIMEOUT_DEFAULT, peer->endpoint->config()));
  OH_REPORT_IF_ERROR(found.status());
  *handle = *found;
  return OH_OK;
}

oh_status oh_comm_device_handle(oh_comm* comm, uint32_t lane, oh_comm_handle* handle) {
  OH_CHECK_ARGUMENT(comm);
  OH_CHECK_ARGUMENT(handle);
  OH_REPORT_IF_ERROR(check_lane(lane));
  const uint32_t size = comm->comm->size();
  if (size > OH_DEVICE_RANKS) {
    return report(error(OH_ERR_INVALID, "a communicator of %u ranks: kernels know %d at most", size,
                        OH_DEVICE_RANKS));
  }
  Endpoint& endpoint = *comm->endpoint.endpoint;
  const Deadline deadline = deadline_after(OH_TIMEOUT_DEFAULT, endpoint.config());
  auto made = std::make_unique<oh_comm_handle>();
  made->rank = comm->comm->rank();
  made->size = size;
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (rank == made->rank) continue;
    Result<std::shared_ptr<Peer>> peer = comm->comm->peer(rank, deadline);
    OH_REPORT_IF_ERROR(peer.status());
    Result<oh_lane_handle> found = lane_for_kernels(endpoint, **peer, lane, deadline);
    OH_REPORT_IF_ERROR(found.status());
    made->ranks[rank] = *found;
  }
  *handle = *made;
  return OH_OK;
}

oh_status oh_peer_lane_target(oh_peer* peer, void* data, size_t size, oh_lane_target* target) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(target);
  OH_REPORT_IF_ERROR(check_buffer(data, size));
  const Config& config = peer->endpoint->config();
  Result<oh_lane_target> found = target_for_kernels(*peer->endpoint, *peer->peer, data, size,
                                                    deadline_after(OH_TIMEOUT_DEFAULT, config));
  OH_REPORT_IF_ERROR(found.status());
  *target = *found;
  return OH_OK;
}

oh_status oh_remote_region_device(oh_remote_region* remote, oh_remote_memory* memory) {
  OH_CHECK_ARGUMENT(remote);
  OH_CHECK_ARGUMENT(memory);
  OH_REPORT_IF_ERROR(why_forked(*remote->attached->endpoint));
  if (remote->attached->target.read_only) {
    return report(
        error(OH_ERR_READ_ONLY, "the region is read-only: kernels put into what this gives them"));
  }
  const AttachedRegion& region = *remote->attached;
  Result<MappedRegion> found =
      map_region(*region.endpoint, *region.peer, region.target, RegionIn::kDevice);
  OH_REPORT_IF_ERROR(found.status());
  *memory = {found->base, region.target.length};
  return OH_OK;
}

oh_status oh_peer_reset_lane(oh_peer* peer, uint32_t lane, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(peer);
  Result<Deadline> deadline = deadline_of(timeout_ns, peer->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  return report(reset_lane(*peer->endpoint, *peer->peer, lane, *deadline));
}

oh_status oh_peer_get_stream_info(oh_peer* peer, oh_stream_info* info) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(info);
  OH_REPORT_IF_ERROR(why_forked(*peer->endpoint));
  thread_local std::string why;
  thread_local std::string why_no_kernels;
  StreamLink& stream = peer->peer->stream();
  Status status = stream.why_not();
  why = status.ok() ? std::string() : status.text();
  why_no_kernels = stream.why_no_kernels();
  oh_stream_info value{};
  value.ready = stream.is_ready();
  const bool kernels = why_no_kernels.empty();
  value.path = !status.ok() ? OH_PATH_NONE : kernels ? OH_PATH_NVLINK : OH_PATH_PROXY;
  value.why_not = why.c_str();
  value.why_no_kernels = why_no_kernels.c_str();
  value.small_max = kernels ? static_cast<uint64_t>(peer->endpoint->config().stream_small) : 0;
  if (stream.by_proxy()) {
    value.stream_buffered = kernels::kProxySmall;
    value.device_memory = stream.proxy().memory()->device_bytes();
  } else if (stream.by_kernels()) {
    value.stream_buffered = value.small_max = stream.lanes().most_buffered(0);
    value.device_memory = stream.lanes().slab()->bytes();
  }
  OH_REPORT_IF_ERROR(write_out(value, info));
  return OH_OK;
}

}  // extern "C"
