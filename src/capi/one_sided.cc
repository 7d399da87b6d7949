// SPDX-License-Identifier: Apache-2.0
#include "capi/one_sided.h"

using namespace oh;  // NOLINT: the C API is a thin skin over it

namespace {

Status read_put_options(bool put, const oh_put_options* given, oh_put_options* options) {
  OH_RETURN_IF_ERROR(read_options(given, options));
  OH_RETURN_IF_ERROR(check_buffer(options->notify, options->notify_size));
  OH_RETURN_IF_ERROR(check_notification(options->notify_size));
  if (put || !options->notify) return {};
  return error(OH_ERR_INVALID, "a get has no notification: only a put changes anything");
}

// A call while it is carried out.
struct Run {
  const OneSidedCall& call;
  Request* request;
  const ByteView* notify;  // null: none
  Deadline deadline;
};

Status copy_now(const Run& run, LocalMemory& local) {
  const OneSidedCall& call = run.call;
  Endpoint& endpoint = *call.region.endpoint;
  Peer& peer = *call.region.peer;
  const bool many = call.movement.blocks.size() > 1;
  const bool for_worker = endpoint.worker() && call.region.target.imported;
  if (many || (for_worker && call.movement.bytes <= Worker::kLongest)) {
    endpoint.admit_kernels(call.region.target, call.data, call.size, &local);
  }
  Status status = call.movement.blocks.empty()
                      ? peer.usable()
                      : peer.copy(call.region.target, local, call.movement, run.deadline);
  Request* request = run.request;
  request->nbytes = call.movement.bytes;
  request->path = peer.path_of(call.region.target, local, call.movement.bytes);
  request->peer = &peer;
  request->peer_id = peer.pair().id;
  request->peer_rank = peer.pair().rank;
  if (status.ok() && run.notify) {
    request->kind = OpKind::kNotify;
    return peer.post_notification(request, *run.notify);
  }
  request->done.store(1, std::memory_order_release);
  return status;
}

Status start(const Run& run, const AfterOption& after) {
  const OneSidedCall& call = run.call;
  Endpoint& endpoint = *call.region.endpoint;
  Peer& peer = *call.region.peer;
  const RemoteTarget& target = call.region.target;
  LocalMemory local;
  OH_RETURN_IF_ERROR(endpoint.prepare_local(call.data, call.size, after, &local));
  const std::span<const Block>& blocks = call.movement.blocks;
  if (blocks.empty() || peer.reaches(target, local.on_device)) return copy_now(run, local);
  BlockList list =
      call.list ? call.list : std::make_shared<std::vector<Block>>(blocks.begin(), blocks.end());
  if (!target.on_device && !local.on_device) {
    return peer.post_one_sided(run.request, target, std::move(list), run.notify);
  }
  OH_RETURN_IF_ERROR(endpoint.export_local(call.data, call.size, &local));
  return peer.post_by_slots(run.request, target, local, std::move(list), run.notify, run.deadline);
}

oh_status run_one(const oh_remote_region& remote, const Block& block, bool put,
                  const oh_put_options* options, oh_request** request) {
  OH_REPORT_IF_ERROR(check_buffer(block.local, block.size));
  OH_REPORT_IF_ERROR(check_piece(remote, block.remote_offset, block.size));
  OneSidedCall call{*remote.attached, block.local, block.size, {}};
  call.movement.put = put;
  call.movement.blocks = {&block, block.size ? 1u : 0u};
  call.movement.count = call.movement.blocks.size();
  call.movement.bytes = block.size;
  return run(call, options, request);
}

}  // namespace

namespace oh {

AttachedRegion::~AttachedRegion() {
  Endpoint::detach(target);
  peer->detach_key(target);
}

Status check_piece(const oh_remote_region& remote, size_t offset, size_t size) {
  uint64_t length = remote.attached->target.length;
  if (slice_fits(offset, size, length)) return {};
  return error(OH_ERR_RANGE, "bytes %zu to %zu of a remote region of %llu bytes", offset,
               offset + size, static_cast<unsigned long long>(length));
}

Status check_attached_at(const oh_remote_region& remote, const oh_peer& peer) {
  if (remote.attached->peer == peer.peer) return {};
  return error(OH_ERR_INVALID, "the remote region was attached at another peer");
}

oh_status run(const OneSidedCall& call, const oh_put_options* given, oh_request** out) {
  const std::shared_ptr<Endpoint>& endpoint = call.region.endpoint;
  const bool put = call.movement.put;
  oh_put_options options;
  OH_REPORT_IF_ERROR(read_put_options(put, given, &options));
  OH_REPORT_IF_ERROR(endpoint->usable());
  Result<Deadline> deadline = deadline_of(options.timeout_ns, endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Result<AfterOption> after = after_option(options);
  OH_REPORT_IF_ERROR(after.status());

  // A request of the caller's, or one that ends with this call.
  Request local;
  Request* request = out ? acquire(endpoint) : &local;
  prepare(request, *endpoint, put ? OpKind::kPut : OpKind::kGet, nullptr, call.movement.bytes, 0);
  ByteView notify{static_cast<const uint8_t*>(options.notify), options.notify_size};
  Status status = start({call, request, options.notify ? &notify : nullptr, *deadline}, *after);
  if (!status.ok()) {
    request->done.store(1, std::memory_order_release);
    if (out) release(request);
    return report(status);
  }
  if (out) {
    *out = as_handle(request);
    return OH_OK;
  }
  return report(endpoint->wait(request, *deadline, call.region.peer.get()));
}

}  // namespace oh

extern "C" {

oh_status oh_peer_attach(oh_peer* peer, const void* descriptor, size_t size, int64_t timeout_ns,
                         oh_remote_region** remote) {
  OH_CHECK_ARGUMENT(peer);
  if (size > 0) OH_CHECK_ARGUMENT(descriptor);  // no bytes are no descriptor, whose error says so
  OH_CHECK_ARGUMENT(remote);
  Result<Deadline> deadline = deadline_of(timeout_ns, peer->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Result<RemoteTarget> target = peer->endpoint->attach(
      *peer->peer, {static_cast<const uint8_t*>(descriptor), size}, *deadline);
  OH_REPORT_IF_ERROR(target.status());
  std::shared_ptr<AttachedRegion> attached(
      new AttachedRegion{peer->endpoint, peer->peer, std::move(*target)});
  peer->peer->attach_key(attached->target);
  *remote = new oh_remote_region{std::move(attached)};
  return OH_OK;
}

void oh_remote_region_detach(oh_remote_region* remote) {
  if (remote && remote->attached->endpoint->is_of_this_process()) delete remote;
}
size_t oh_remote_region_size(oh_remote_region* remote) {
  return remote ? remote->attached->target.length : 0;
}

oh_status oh_peer_put(oh_peer* peer, const void* data, oh_remote_region* remote,
                      size_t remote_offset, size_t size, const oh_put_options* options,
                      oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  OH_REPORT_IF_ERROR(check_attached_at(*remote, *peer));
  auto* local = static_cast<uint8_t*>(const_cast<void*>(data));
  return run_one(*remote, {local, remote_offset, size}, /*put=*/true, options, request);
}

oh_status oh_peer_get(oh_peer* peer, void* data, oh_remote_region* remote, size_t remote_offset,
                      size_t size, const oh_put_options* options, oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  OH_REPORT_IF_ERROR(check_attached_at(*remote, *peer));
  auto* local = static_cast<uint8_t*>(data);
  return run_one(*remote, {local, remote_offset, size}, /*put=*/false, options, request);
}

}  // extern "C"
