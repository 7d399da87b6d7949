// SPDX-License-Identifier: Apache-2.0
#include "calls/batch_messages.h"
#include "capi/handles.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

namespace {

// The checked arguments of a call.
struct Call {
  LocalBlocks local;
  oh_transfer_options options;
  AfterOption after;
  Deadline deadline = Deadline::never();
};

Status check_batch_tag(uint64_t tag) {
  if (tag <= OH_BATCH_TAG_MAX) return {};
  return error(OH_ERR_INVALID, "tag %llu: tags of batches are 0 to %llu",
               static_cast<unsigned long long>(tag),
               static_cast<unsigned long long>(OH_BATCH_TAG_MAX));
}

static_assert(BlockLayout::kMost == OH_BATCH_BLOCKS_MAX);

Result<LocalBlocks> read_blocks(const oh_blocks* given) {
  oh_blocks blocks;
  OH_RETURN_IF_ERROR(read_options(given, &blocks));
  OH_RETURN_IF_ERROR(check_buffer(blocks.memory, blocks.memory_size));
  if (blocks.count > BlockLayout::kMost) {
    return error(OH_ERR_INVALID, "a batch of %zu blocks: at most %llu go at once, make several",
                 blocks.count, static_cast<unsigned long long>(BlockLayout::kMost));
  }
  if (blocks.count && !blocks.offsets != !blocks.lengths) {
    return error(OH_ERR_INVALID, "%zu blocks: give both arrays, or none for the strided form",
                 blocks.count);
  }
  LocalBlocks local;
  local.memory = static_cast<uint8_t*>(blocks.memory);
  local.size = blocks.memory_size;
  local.blocks = {blocks.count, blocks.offsets, blocks.lengths,
                  blocks.base,  blocks.stride,  blocks.length};
  OH_ASSIGN_OR_RETURN(local.bytes, local.blocks.measure(local.size, "memory"));
  return local;
}

Result<Call> read_call(const oh_peer& peer, const oh_blocks* blocks, uint64_t tag,
                       const oh_transfer_options* given) {
  Call call;
  OH_RETURN_IF_ERROR(read_options(given, &call.options));
  OH_RETURN_IF_ERROR(check_batch_tag(tag));
  OH_RETURN_IF_ERROR(check_timeout(call.options.timeout_ns));
  OH_RETURN_IF_ERROR(peer.endpoint->usable());
  call.deadline = deadline_after(call.options.timeout_ns, peer.endpoint->config());
  OH_ASSIGN_OR_RETURN(call.after, after_option(call.options));
  OH_ASSIGN_OR_RETURN(call.local, read_blocks(blocks));
  return call;
}

Status post(oh_peer& peer, Request* request, Call& call, uint64_t tag) {
  prepare(request, *peer.endpoint, OpKind::kRecvBatch, call.local.memory, call.local.bytes, tag);
  return post_batch(*peer.endpoint, *peer.peer, request, call.local, call.after, call.deadline);
}

}  // namespace

extern "C" {

oh_status oh_peer_send_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                             const oh_transfer_options* options) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(blocks);
  Result<Call> call = read_call(*peer, blocks, tag, options);
  OH_REPORT_IF_ERROR(call.status());
  return report(
      BatchSend(*peer->endpoint, *peer->peer, call->local, tag).run(call->after, call->deadline));
}

oh_status oh_peer_recv_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                             const oh_transfer_options* options, oh_message* message) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(blocks);
  Result<Call> call = read_call(*peer, blocks, tag, options);
  OH_REPORT_IF_ERROR(call.status());
  Request request;
  OH_REPORT_IF_ERROR(post(*peer, &request, *call, tag));
  OH_REPORT_IF_ERROR(peer->endpoint->requests().wait(&request, call->deadline, peer->peer.get()));
  return message ? report(read_message(request, message)) : OH_OK;
}

oh_status oh_peer_irecv_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                              const oh_transfer_options* options, oh_request** out) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(blocks);
  OH_CHECK_ARGUMENT(out);
  Result<Call> call = read_call(*peer, blocks, tag, options);
  OH_REPORT_IF_ERROR(call.status());
  Request* request = acquire(peer->endpoint);
  return hand_out(request, post(*peer, request, *call, tag), out);
}

}  // extern "C"
