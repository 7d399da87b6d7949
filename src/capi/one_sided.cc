// SPDX-License-Identifier: Apache-2.0
#include "capi/one_sided.h"

#include "stream/stream_atomics.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

namespace {

Status read_put_options(const oh_put_options* given, oh_put_options* options) {
  OH_RETURN_IF_ERROR(read_options(given, options));
  OH_RETURN_IF_ERROR(check_buffer(options->notify, options->notify_size));
  return check_notification(options->notify_size);
}

oh_status call_atomic(oh_peer* peer, oh_remote_region* remote, size_t offset, const AtomicOp& op,
                      int64_t timeout_ns, uint64_t* before) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  OH_CHECK_ARGUMENT(before);
  OH_REPORT_IF_ERROR(check_remote(*remote, *peer, /*put=*/true));
  OH_REPORT_IF_ERROR(check_piece(*remote, offset, sizeof(*before)));
  Result<Deadline> deadline = deadline_of(timeout_ns, peer->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  const RemoteTarget& target = remote->attached->target;
  const auto call = target.on_device ? run_atomic_on_device : run_atomic;
  Result<uint64_t> found = call(*peer->endpoint, *peer->peer, target, offset, op, *deadline);
  OH_REPORT_IF_ERROR(found.status());
  *before = *found;
  return OH_OK;
}

oh_status run_one(const oh_remote_region& remote, const Block& block, bool put,
                  const oh_put_options* options, oh_request** request) {
  OH_REPORT_IF_ERROR(check_buffer(block.local, block.size));
  OH_REPORT_IF_ERROR(check_piece(remote, block.remote_offset, block.size));
  const size_t count = block.size ? 1 : 0;
  const MovePart part{remote.attached->target, block.local, block.size,
                      {&block, count},         count,       block.size};
  const AttachedRegion& region = *remote.attached;
  return run(region.endpoint, *region.peer, {.put = put, .parts = {&part, 1}}, options, request);
}

}  // namespace

namespace oh {

AttachedRegion::~AttachedRegion() {
  EndpointMemory::detach(target);
  peer->operations().one_sided().detach_key(target);
}

Status check_piece(const oh_remote_region& remote, size_t offset, size_t size) {
  uint64_t length = remote.attached->target.length;
  if (slice_fits(offset, size, length)) return {};
  return error(OH_ERR_RANGE, "bytes %zu to %zu of a remote region of %llu bytes", offset,
               offset + size, static_cast<unsigned long long>(length));
}

Status check_remote(const oh_remote_region& remote, const oh_peer& peer, bool put) {
  if (remote.attached->peer != peer.peer) {
    return error(
        OH_ERR_INVALID,
        "the remote region was attached at another peer: attach its descriptor at this one");
  }
  if (!put || !remote.attached->target.read_only) return {};
  return error(OH_ERR_READ_ONLY,
               "%s has registered the region of %llu bytes read-only: get from it, or register it "
               "for writing there",
               peer.peer->link().name.c_str(),
               static_cast<unsigned long long>(remote.attached->target.length));
}

oh_status run(const std::shared_ptr<Endpoint>& endpoint, Peer& peer, Move move,
              const oh_put_options* given, oh_request** out) {
  oh_put_options options;
  OH_REPORT_IF_ERROR(read_put_options(given, &options));
  OH_REPORT_IF_ERROR(endpoint->usable());
  OH_REPORT_IF_ERROR(check_timeout(options.timeout_ns));
  Result<AfterOption> after = after_option(options);
  OH_REPORT_IF_ERROR(after.status());
  // An immediate copy of ready memory never waits: do not read the clock for it.
  Deadline deadline = Deadline::never();
  const auto set_deadline = [&] {
    deadline = deadline_after(options.timeout_ns, endpoint->config());
  };
  if (after->given()) set_deadline();
  move.deadline = endpoint->until_closed(deadline);
  const ByteView notify{static_cast<const uint8_t*>(options.notify), options.notify_size};
  if (options.notify) move.notify = &notify;
  move.after = *after;
  move.background = options.background != 0;

  // A request for the caller, or a local one that ends within this call.
  Request local;
  Request* request = out ? acquire(endpoint) : &local;
  prepare(request, *endpoint, move.put ? OpKind::kPut : OpKind::kGet, nullptr, move.bytes(), 0);
  Status status = peer.operations().one_sided().move(request, move);
  if (!status.ok()) {
    request->done.store(1, std::memory_order_release);
    if (out) release(request);
    return report(status);
  }
  if (out) {
    *out = as_handle(request);
    return OH_OK;
  }
  if (request->ended()) return report(request->status);
  if (!after->given()) set_deadline();
  return report(endpoint->requests().wait(request, deadline, &peer));
}

}  // namespace oh

extern "C" {

oh_status oh_peer_attach(oh_peer* peer, const void* descriptor, size_t size, int64_t timeout_ns,
                         oh_remote_region** remote) {
  OH_CHECK_ARGUMENT(peer);
  if (size > 0) OH_CHECK_ARGUMENT(descriptor);  // attach() reports an empty descriptor
  OH_CHECK_ARGUMENT(remote);
  Result<Deadline> deadline = deadline_of(timeout_ns, peer->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Result<RemoteTarget> target = peer->endpoint->memory().attach(
      *peer->peer, {static_cast<const uint8_t*>(descriptor), size}, *deadline);
  OH_REPORT_IF_ERROR(target.status());
  std::shared_ptr<AttachedRegion> attached(
      new AttachedRegion{peer->endpoint, peer->peer, std::move(*target)});
  peer->peer->operations().one_sided().attach_key(attached->target);
  *remote = new oh_remote_region{std::move(attached)};
  return OH_OK;
}

void oh_remote_region_detach(oh_remote_region* remote) {
  if (!remote || !remote->attached->endpoint->is_of_this_process()) return;
  const AwaitsCallbacks end(*remote->attached->endpoint);
  delete remote;
}
size_t oh_remote_region_size(oh_remote_region* remote) {
  return remote ? remote->attached->target.length : 0;
}

int oh_remote_region_is_read_only(oh_remote_region* remote) {
  return remote && remote->attached->target.read_only ? 1 : 0;
}

int oh_remote_region_is_mapped(oh_remote_region* remote) {
  if (!remote) return 0;
  const AttachedRegion& region = *remote->attached;
  return region.peer->operations().atomics().reaches(region.target) ? 1 : 0;
}

oh_status oh_peer_put(oh_peer* peer, const void* data, oh_remote_region* remote,
                      size_t remote_offset, size_t size, const oh_put_options* options,
                      oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  OH_REPORT_IF_ERROR(check_remote(*remote, *peer, /*put=*/true));
  auto* local = static_cast<uint8_t*>(const_cast<void*>(data));
  return run_one(*remote, {local, remote_offset, size}, /*put=*/true, options, request);
}

oh_status oh_peer_get(oh_peer* peer, void* data, oh_remote_region* remote, size_t remote_offset,
                      size_t size, const oh_put_options* options, oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  OH_REPORT_IF_ERROR(check_remote(*remote, *peer, /*put=*/false));
  auto* local = static_cast<uint8_t*>(data);
  return run_one(*remote, {local, remote_offset, size}, /*put=*/false, options, request);
}

oh_status oh_peer_fetch_add(oh_peer* peer, oh_remote_region* remote, size_t remote_offset,
                            uint64_t value, int64_t timeout_ns, uint64_t* before) {
  return call_atomic(peer, remote, remote_offset, {AtomicOp::Kind::kAdd, value}, timeout_ns,
                     before);
}

oh_status oh_peer_compare_swap(oh_peer* peer, oh_remote_region* remote, size_t remote_offset,
                               uint64_t expected, uint64_t value, int64_t timeout_ns,
                               uint64_t* before) {
  return call_atomic(peer, remote, remote_offset, {AtomicOp::Kind::kCompareSwap, value, expected},
                     timeout_ns, before);
}

}  // extern "C"
