// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "capi/handles.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

namespace {

// Waits for a posted, pooled request. Returns it to the caller while its buffer may still be
// accessed; releases it otherwise.
oh_status wait_or_hand_out(Request* request, Deadline deadline, oh_message* message,
                           oh_request** out) {
  Status status = request->endpoint->requests().poll_until(request, deadline);
  if (!request->endpoint->requests().buffer_released(request)) {
    *out = as_handle(request);
    return status.code() == OH_IN_PROGRESS ? OH_IN_PROGRESS : report(status);
  }
  if (status.code() == OH_IN_PROGRESS) status = request->status;  // it ended after the poll
  if (status.ok() && message) status = oh::read_message(*request, message);
  oh_status code = report(status);
  release(request);
  return code;
}

Status read_message(const Peer& peer, const ShortReceives::Received& received,
                    oh_message* message) {
  oh_message value{};
  value.size = received.size;
  value.tag = received.tag;
  value.path = received.path;
  value.peer_id = peer.link().id;
  value.rank = peer.link().rank;
  return write_out(value, message);
}

// Slow path of oh_peer_send and oh_peer_recv. Separate functions, because a request on the stack
// would enlarge the frame of every call.
[[gnu::noinline]] oh_status send_by_request(const oh_peer& peer, ByteView bytes, uint64_t tag,
                                            const oh_transfer_options& options) {
  Request request;
  prepare(&request, *peer.endpoint, OpKind::kSend, const_cast<uint8_t*>(bytes.data()), bytes.size(),
          tag);
  request.attended = true;
  OH_REPORT_IF_ERROR(prepare_memory(&request, options));
  Status status = peer.peer->operations().messages().post_send(&request);
  // Small messages have ended here: do not read the clock for them.
  if (status.ok() && request.ended()) return report(request.status);
  Deadline deadline = deadline_after(options.timeout_ns, peer.endpoint->config());
  if (status.code() == OH_AGAIN) {
    status = peer.endpoint->requests().post_send(*peer.peer, &request, deadline);
  }
  OH_REPORT_IF_ERROR(status);
  return report(peer.endpoint->requests().wait(&request, deadline, peer.peer.get()));
}

[[gnu::noinline]] oh_status recv_by_request(const oh_peer& peer, std::span<uint8_t> bytes,
                                            uint64_t tag, const oh_transfer_options& options,
                                            oh_message* message) {
  Deadline deadline = deadline_after(options.timeout_ns, peer.endpoint->config());
  Request request;
  prepare(&request, *peer.endpoint, OpKind::kRecv, bytes.data(), bytes.size(), tag);
  request.attended = true;
  OH_REPORT_IF_ERROR(prepare_memory(&request, options));
  OH_REPORT_IF_ERROR(peer.peer->operations().messages().post_recv(&request));
  OH_REPORT_IF_ERROR(peer.endpoint->requests().wait(&request, deadline, peer.peer.get()));
  return message ? report(read_message(request, message)) : OH_OK;
}

// Applies `wait` to a request that has not ended, for at most the timeout.
template <typename Wait>
oh_status wait_for(oh_request* handle, int64_t timeout_ns, const Wait& wait) {
  Request* request = as_request(handle);
  if (request->ended()) return request->status.ok() ? OH_OK : report(request->status);
  OH_REPORT_IF_ERROR(why_no_wait(*request));
  Result<Deadline> deadline = deadline_of(timeout_ns, request->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  return report(wait(request->endpoint->requests(), request, *deadline));
}

}  // namespace

extern "C" {

oh_status oh_peer_send(oh_peer* peer, const void* data, size_t size, uint64_t tag,
                       const oh_transfer_options* given) {
  OH_CHECK_ARGUMENT(peer);
  if (tag <= OH_TAG_MAX && (data || size == 0) && peer->endpoint->is_usable() &&
      host_only(*peer->endpoint, given) &&
      peer->peer->operations().messages().send_now(static_cast<const uint8_t*>(data), size, tag)) {
    return OH_OK;
  }
  oh_transfer_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/false));
  OH_REPORT_IF_ERROR(check_buffer(data, size));
  OH_REPORT_IF_ERROR(check_timeout(options.timeout_ns));
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  return send_by_request(*peer, {static_cast<const uint8_t*>(data), size}, tag, options);
}

oh_status oh_peer_recv(oh_peer* peer, void* data, size_t capacity, uint64_t tag,
                       const oh_transfer_options* given, oh_message* message) {
  OH_CHECK_ARGUMENT(peer);
  oh_transfer_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/true));
  OH_REPORT_IF_ERROR(check_buffer(data, capacity));
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  OH_REPORT_IF_ERROR(check_timeout(options.timeout_ns));
  ShortReceives::Received received;
  if (host_only(*peer->endpoint, given) &&
      peer->peer->operations().messages().recv_now(static_cast<uint8_t*>(data), capacity, tag,
                                                   &received)) {
    return message ? report(read_message(*peer->peer, received, message)) : OH_OK;
  }
  return recv_by_request(*peer, {static_cast<uint8_t*>(data), capacity}, tag, options, message);
}

oh_status oh_peer_send_for(oh_peer* peer, const void* data, size_t size, uint64_t tag,
                           const oh_transfer_options* given, oh_request** out) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(out);
  oh_transfer_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/false));
  OH_REPORT_IF_ERROR(check_buffer(data, size));
  OH_REPORT_IF_ERROR(check_timeout(options.timeout_ns));
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  *out = nullptr;
  if (host_only(*peer->endpoint, given) &&
      peer->peer->operations().messages().send_now(static_cast<const uint8_t*>(data), size, tag)) {
    return OH_OK;
  }
  Deadline deadline = deadline_after(options.timeout_ns, peer->endpoint->config());
  Request* request = acquire(peer->endpoint);
  prepare(request, *peer->endpoint, OpKind::kSend, const_cast<void*>(data), size, tag);
  request->attended = true;
  Status status = prepare_memory(request, options);
  if (status.ok()) status = peer->peer->operations().messages().post_send(request);
  bool full = status.code() == OH_AGAIN;
  if (full) status = peer->endpoint->requests().post_send(*peer->peer, request, deadline);
  if (!status.ok()) {
    oh_status code = give_up(request, status);
    return full && code == OH_ERR_TIMEOUT ? OH_AGAIN : code;
  }
  return wait_or_hand_out(request, deadline, nullptr, out);
}

oh_status oh_peer_recv_for(oh_peer* peer, void* data, size_t capacity, uint64_t tag,
                           const oh_transfer_options* given, oh_message* message,
                           oh_request** out) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(out);
  oh_transfer_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/true));
  OH_REPORT_IF_ERROR(check_buffer(data, capacity));
  OH_REPORT_IF_ERROR(check_timeout(options.timeout_ns));
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  *out = nullptr;
  ShortReceives::Received received;
  if (host_only(*peer->endpoint, given) &&
      peer->peer->operations().messages().recv_now(static_cast<uint8_t*>(data), capacity, tag,
                                                   &received)) {
    return message ? report(read_message(*peer->peer, received, message)) : OH_OK;
  }
  Deadline deadline = deadline_after(options.timeout_ns, peer->endpoint->config());
  Request* request = acquire(peer->endpoint);
  prepare(request, *peer->endpoint, OpKind::kRecv, data, capacity, tag);
  request->attended = true;
  Status status = prepare_memory(request, options);
  if (status.ok()) status = peer->peer->operations().messages().post_recv(request);
  if (!status.ok()) return give_up(request, status);
  return wait_or_hand_out(request, deadline, message, out);
}

oh_status oh_peer_isend(oh_peer* peer, const void* data, size_t size, uint64_t tag,
                        const oh_transfer_options* given, oh_request** out) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(out);
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/false));
  OH_REPORT_IF_ERROR(check_buffer(data, size));
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  if (host_only(*peer->endpoint, given)) {
    Request* request = acquire(peer->endpoint);
    prepare(request, *peer->endpoint, OpKind::kSend, const_cast<void*>(data), size, tag);
    if (!peer->peer->operations().messages().send_now(request, static_cast<const uint8_t*>(data),
                                                      size, tag)) {
      return hand_out(request, peer->peer->operations().messages().post_send(request), out);
    }
    *out = as_handle(request);
    return OH_OK;
  }
  oh_transfer_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  Request* request = acquire(peer->endpoint);
  prepare(request, *peer->endpoint, OpKind::kSend, const_cast<void*>(data), size, tag);
  Status status = prepare_memory(request, options);
  if (status.ok()) status = peer->peer->operations().messages().post_send(request);
  return hand_out(request, status, out);
}

oh_status oh_peer_irecv(oh_peer* peer, void* data, size_t capacity, uint64_t tag,
                        const oh_transfer_options* given, oh_request** out) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(out);
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/true));
  OH_REPORT_IF_ERROR(check_buffer(data, capacity));
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  if (host_only(*peer->endpoint, given)) {
    Request* request = acquire(peer->endpoint);
    prepare(request, *peer->endpoint, OpKind::kRecv, data, capacity, tag);
    return hand_out(request, peer->peer->operations().messages().post_recv(request), out);
  }
  oh_transfer_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  Request* request = acquire(peer->endpoint);
  prepare(request, *peer->endpoint, OpKind::kRecv, data, capacity, tag);
  Status status = prepare_memory(request, options);
  if (status.ok()) status = peer->peer->operations().messages().post_recv(request);
  return hand_out(request, status, out);
}

oh_status oh_peer_notify(oh_peer* peer, const void* data, size_t size,
                         const oh_transfer_options* given) {
  OH_CHECK_ARGUMENT(peer);
  oh_transfer_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  OH_REPORT_IF_ERROR(check_buffer(data, size));
  OH_REPORT_IF_ERROR(check_notification(size));
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  Result<Deadline> deadline = deadline_of(options.timeout_ns, peer->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Request request;
  prepare(&request, *peer->endpoint, OpKind::kNotify, nullptr, size, 0);
  OH_REPORT_IF_ERROR(peer->peer->operations().one_sided().post_notification(
      &request, {static_cast<const uint8_t*>(data), size}));
  return report(peer->endpoint->requests().wait(&request, *deadline, peer->peer.get()));
}

oh_status oh_peer_signal(oh_peer* peer, uint32_t slot, uint64_t count) {
  OH_CHECK_ARGUMENT(peer);
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  OH_REPORT_IF_ERROR(check_slot(slot));
  return report(peer->peer->operations().one_sided().signal(slot, count));
}

oh_status oh_peer_wait_signal(oh_peer* peer, uint32_t slot, uint64_t count, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(peer);
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  OH_REPORT_IF_ERROR(check_slot(slot));
  Result<Deadline> deadline = deadline_of(timeout_ns, peer->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  return report(wait_signal(*peer->endpoint, *peer->peer, slot, count, *deadline));
}

oh_status oh_peer_flight_record(oh_peer* peer, char* text, size_t* size) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(size);
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  std::string record = peer->peer->operations().flight_record();
  return answer(
      copy_out({reinterpret_cast<const uint8_t*>(record.c_str()), record.size() + 1}, text, size));
}

oh_status oh_peer_async_error(oh_peer* peer) {
  OH_CHECK_ARGUMENT(peer);
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  peer->endpoint->progress();
  return report(peer->peer->take_async_error());
}

oh_status oh_peer_close(oh_peer* peer) {
  OH_CHECK_ARGUMENT(peer);
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  peer->peer->close();
  peer->endpoint->forget(peer->peer);
  return OH_OK;
}

void oh_peer_release(oh_peer* peer) {
  if (!peer || !peer->endpoint->is_of_this_process()) return;
  const AwaitsCallbacks end(*peer->endpoint);
  const std::shared_ptr<Endpoint> endpoint = peer->endpoint;
  const bool over = !peer->peer->usable().ok();
  delete peer;
  if (over && endpoint->is_usable()) endpoint->forget_ended();
}

// ---- Requests ---------------------------------------------------------------------------------

oh_status oh_request_test(oh_request* handle) {
  OH_CHECK_ARGUMENT(handle);
  Request* request = as_request(handle);
  if (!request->ended()) {
    OH_REPORT_IF_ERROR(why_no_wait(*request));
    if (!request->endpoint->requests().test(request)) return OH_IN_PROGRESS;
  }
  return report(request->status);
}

oh_status oh_request_wait(oh_request* handle, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(handle);
  return wait_for(handle, timeout_ns, [](Requests& requests, Request* request, Deadline deadline) {
    return requests.wait(request, deadline);
  });
}

oh_status oh_request_poll(oh_request* handle, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(handle);
  return wait_for(handle, timeout_ns, [](Requests& requests, Request* request, Deadline deadline) {
    return requests.poll_until(request, deadline);
  });
}

oh_status oh_request_cancel(oh_request* handle) {
  OH_CHECK_ARGUMENT(handle);
  Request* request = as_request(handle);
  // The endpoint may already be closed.
  if (request->ended()) return report(Requests::cancel_ended(*request));
  OH_REPORT_IF_ERROR(why_no_wait(*request));
  return report(request->endpoint->requests().cancel(request));
}

int oh_request_buffer_released(oh_request* handle) {
  if (!handle) return 1;
  Request* request = as_request(handle);
  // In a child of fork(): the operation belongs to the parent.
  if (!request->endpoint->is_of_this_process()) return 1;
  return request->endpoint->requests().buffer_released(request) ? 1 : 0;
}

oh_status oh_request_message(oh_request* handle, oh_message* message) {
  OH_CHECK_ARGUMENT(handle);
  OH_CHECK_ARGUMENT(message);
  Request* request = as_request(handle);
  if (!request->ended()) {
    return report(error(OH_IN_PROGRESS,
                        "the %s of %llu bytes has not ended: wait for it before its message is "
                        "read",
                        verb_of(request->kind), static_cast<unsigned long long>(request->size)));
  }
  OH_REPORT_IF_ERROR(request->status);
  return report(read_message(*request, message));
}

oh_status oh_request_arm(oh_request* handle) {
  OH_CHECK_ARGUMENT(handle);
  Request* request = as_request(handle);
  OH_REPORT_IF_ERROR(why_no_wait(*request));
  return report(request->endpoint->requests().arm(request));
}

oh_status oh_request_stream_wait(oh_request* handle, void* stream) {
  OH_CHECK_ARGUMENT(handle);
  Request* request = as_request(handle);
  if (request->ended()) return OH_OK;
  OH_REPORT_IF_ERROR(request->endpoint->usable());
  return report(
      request->endpoint->requests().stream_wait(request, static_cast<cuda::Stream>(stream)));
}

oh_status oh_request_wait_enqueued(oh_request* handle, void* stream, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(handle);
  return wait_for(handle, timeout_ns, [=](Requests& requests, Request* request, Deadline deadline) {
    return requests.wait_enqueued(request, static_cast<cuda::Stream>(stream), deadline);
  });
}

oh_status oh_request_poll_enqueued(oh_request* handle, void* stream, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(handle);
  return wait_for(handle, timeout_ns, [=](Requests& requests, Request* request, Deadline deadline) {
    return requests.poll_enqueued(request, static_cast<cuda::Stream>(stream), deadline);
  });
}

void oh_request_release(oh_request* handle) {
  if (handle) release(as_request(handle));
}

}  // extern "C"
