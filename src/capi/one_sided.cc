// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.h"

using namespace oh;  // NOLINT: the C API is a thin skin over it

namespace {

// The blocks of a one-sided call, checked.
Status check_piece(const oh_remote_region* remote, size_t offset, size_t size) {
  if (slice_fits(offset, size, remote->target.length)) return {};
  return error(OH_ERR_RANGE, "bytes %zu to %zu of a remote region of %llu bytes", offset,
               offset + size, static_cast<unsigned long long>(remote->target.length));
}

Status block_outside(size_t index, const char* side, uint64_t offset, uint64_t length,
                     uint64_t bound) {
  return error(OH_ERR_RANGE, "block %zu: %llu bytes at %llu are outside of the %s's %llu bytes",
               index, static_cast<unsigned long long>(length),
               static_cast<unsigned long long>(offset), side,
               static_cast<unsigned long long>(bound));
}

Result<std::vector<Block>> blocks_of(const oh_remote_region* remote, const oh_batch& batch) {
  bool listed = batch.local_offsets || batch.remote_offsets || batch.lengths;
  if (listed && !(batch.local_offsets && batch.remote_offsets && batch.lengths) && batch.count) {
    return error(OH_ERR_INVALID,
                 "a batch of %zu blocks: give all three arrays, or none for the strided form",
                 batch.count);
  }
  OH_RETURN_IF_ERROR(check_buffer(batch.local, batch.local_size));
  std::vector<Block> blocks;
  blocks.reserve(batch.count);
  for (size_t i = 0; i < batch.count; ++i) {
    uint64_t length = listed ? batch.lengths[i] : batch.length;
    uint64_t local = listed ? batch.local_offsets[i] : batch.local_base;
    uint64_t distant = listed ? batch.remote_offsets[i] : batch.remote_base;
    if (!listed) {
      uint64_t local_step;
      uint64_t remote_step;
      if (__builtin_mul_overflow(i, batch.local_stride, &local_step) ||
          __builtin_mul_overflow(i, batch.remote_stride, &remote_step) ||
          __builtin_add_overflow(local, local_step, &local) ||
          __builtin_add_overflow(distant, remote_step, &distant)) {
        return error(OH_ERR_RANGE, "block %zu: its offset does not fit into 64 bits", i);
      }
    }
    if (!slice_fits(local, length, batch.local_size)) {
      return block_outside(i, "local buffer", local, length, batch.local_size);
    }
    if (!slice_fits(distant, length, remote->target.length)) {
      return block_outside(i, "remote region", distant, length, remote->target.length);
    }
    if (length) blocks.push_back({static_cast<uint8_t*>(batch.local) + local, distant, length});
  }
  return blocks;
}

// Does the operation, at once or as messages; with `out` null until it has ended.
oh_status run(oh_peer* peer, bool put, const oh_remote_region* remote, const void* data,
              size_t size, std::vector<Block> blocks, const oh_put_options* given,
              oh_request** out) {
  oh_put_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  OH_REPORT_IF_ERROR(check_buffer(options.notify, options.notify_size));
  OH_REPORT_IF_ERROR(check_notification(options.notify_size));
  if (!put && options.notify) {
    return report(error(OH_ERR_INVALID, "a get has no notification: only a put changes anything"));
  }
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  if (remote->peer != peer->peer) {
    return report(error(OH_ERR_INVALID, "the remote region was attached at another peer"));
  }
  Result<Deadline> deadline = deadline_of(options.timeout_ns, peer->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  uint64_t bytes = 0;
  for (const Block& block : blocks) bytes += block.size;
  Result<AfterOption> after = after_option(options);
  OH_REPORT_IF_ERROR(after.status());
  LocalMemory local_memory;
  OH_REPORT_IF_ERROR(peer->endpoint->prepare_local(data, size, *after, &local_memory));

  // A request of the caller's, or one that ends with this call.
  Request local;
  Request* request = out ? acquire(peer->endpoint) : &local;
  prepare(request, *peer->endpoint, put ? OpKind::kPut : OpKind::kGet, nullptr, bytes, 0);
  Status status;
  bool local_on_device = local_memory.on_device;
  bool direct = peer->peer->reaches(remote->target, local_on_device);
  bool mapped = direct && remote->target.imported && remote->target.on_device;
  if (mapped && (blocks.size() > 1 || (peer->endpoint->worker() && bytes <= Worker::kLongest))) {
    peer->endpoint->admit_kernels(data, size, &local_memory);
  }
  if (direct || blocks.empty()) {
    status = blocks.empty()
                 ? peer->peer->usable()
                 : peer->peer->copy(put, remote->target, local_memory, blocks, *deadline);
    request->nbytes = bytes;
    request->path = peer->peer->path_of(remote->target, local_memory);
    request->peer = peer->peer.get();
    request->peer_id = peer->peer->pair().id;
    request->peer_rank = peer->peer->pair().rank;
    if (status.ok() && options.notify) {
      request->kind = OpKind::kNotify;
      status = peer->peer->post_notification(
          request, {static_cast<const uint8_t*>(options.notify), options.notify_size});
    } else {
      request->done.store(1, std::memory_order_release);
    }
  } else if (remote->target.on_device || local_on_device) {
    ByteView notify{static_cast<const uint8_t*>(options.notify), options.notify_size};
    status = peer->endpoint->export_local(data, size, &local_memory);
    if (status.ok()) {
      status = peer->peer->post_by_slots(request, remote->target, local_memory, std::move(blocks),
                                         options.notify ? &notify : nullptr, *deadline);
    }
  } else {
    ByteView notify{static_cast<const uint8_t*>(options.notify), options.notify_size};
    status = peer->peer->post_one_sided(request, remote->target, std::move(blocks),
                                        options.notify ? &notify : nullptr);
  }
  if (!status.ok()) {
    request->done.store(1, std::memory_order_release);
    if (out) release(request);
    return report(status);
  }
  if (out) {
    *out = as_handle(request);
    return OH_OK;
  }
  return report(peer->endpoint->wait(request, *deadline, peer->peer.get()));
}

oh_status run_one(oh_peer* peer, bool put, void* data, const oh_remote_region* remote,
                  size_t offset, size_t size, const oh_put_options* options, oh_request** request) {
  OH_REPORT_IF_ERROR(check_buffer(data, size));
  OH_REPORT_IF_ERROR(check_piece(remote, offset, size));
  std::vector<Block> blocks;
  if (size) blocks.push_back({static_cast<uint8_t*>(data), offset, size});
  return run(peer, put, remote, data, size, std::move(blocks), options, request);
}

oh_status run_batch(oh_peer* peer, bool put, const oh_remote_region* remote, const oh_batch* given,
                    const oh_put_options* options, oh_request** request) {
  oh_batch batch;
  OH_REPORT_IF_ERROR(read_options(given, &batch));
  Result<std::vector<Block>> blocks = blocks_of(remote, batch);
  OH_REPORT_IF_ERROR(blocks.status());
  return run(peer, put, remote, batch.local, batch.local_size, std::move(*blocks), options,
             request);
}

}  // namespace

extern "C" {

oh_status oh_peer_attach(oh_peer* peer, const void* descriptor, size_t size, int64_t timeout_ns,
                         oh_remote_region** remote) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(descriptor);
  OH_CHECK_ARGUMENT(remote);
  Result<Deadline> deadline = deadline_of(timeout_ns, peer->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Result<RemoteTarget> target = peer->endpoint->attach(
      *peer->peer, {static_cast<const uint8_t*>(descriptor), size}, *deadline);
  OH_REPORT_IF_ERROR(target.status());
  *remote = new oh_remote_region{peer->endpoint, peer->peer, std::move(*target)};
  return OH_OK;
}

void oh_remote_region_detach(oh_remote_region* remote) {
  if (!remote || !remote->endpoint->is_of_this_process()) return;
  std::shared_ptr<ImportedBlock> import = remote->target.import.lock();
  if (import) import->attached.fetch_sub(1, std::memory_order_relaxed);
  delete remote;
}
size_t oh_remote_region_size(oh_remote_region* remote) {
  return remote ? remote->target.length : 0;
}

oh_status oh_peer_put(oh_peer* peer, const void* data, oh_remote_region* remote,
                      size_t remote_offset, size_t size, const oh_put_options* options,
                      oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  return run_one(peer, true, const_cast<void*>(data), remote, remote_offset, size, options,
                 request);
}

oh_status oh_peer_get(oh_peer* peer, void* data, oh_remote_region* remote, size_t remote_offset,
                      size_t size, const oh_put_options* options, oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  return run_one(peer, false, data, remote, remote_offset, size, options, request);
}

oh_status oh_peer_put_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                            const oh_put_options* options, oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  OH_CHECK_ARGUMENT(batch);
  return run_batch(peer, true, remote, batch, options, request);
}

oh_status oh_peer_get_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                            const oh_put_options* options, oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(remote);
  OH_CHECK_ARGUMENT(batch);
  return run_batch(peer, false, remote, batch, options, request);
}

}  // extern "C"
