// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "capi/handles.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

namespace {

using RequestList = std::span<Request* const>;

RequestList as_requests(oh_request* const* handles, size_t count) {
  return {reinterpret_cast<Request* const*>(handles), count};
}

Status check_requests(oh_request* const* handles, size_t count) {
  if (!handles && count > 0) return error(OH_ERR_INVALID, "%zu requests at NULL", count);
  for (size_t i = 0; i < count; ++i) {
    if (!handles[i]) return error(OH_ERR_INVALID, "requests[%zu] of %zu is NULL", i, count);
    Request* request = as_request(handles[i]);
    if (!request->ended()) OH_RETURN_IF_ERROR(why_no_wait(*request));
  }
  return {};
}

// The default timeout comes from the first request's endpoint.
Result<Deadline> deadline_of(RequestList requests, int64_t timeout_ns) {
  if (requests.empty()) return Deadline::after(0);
  return oh::deadline_of(timeout_ns, requests.front()->endpoint->config());
}

bool all_ended(RequestList requests) {
  return std::all_of(requests.begin(), requests.end(),
                     [](const Request* request) { return request->ended(); });
}

bool wait_for_all(RequestList requests, Deadline deadline) {
  bool one_endpoint = std::all_of(requests.begin(), requests.end(), [&](const Request* request) {
    return request->endpoint == requests.front()->endpoint;
  });
  if (!one_endpoint) {
    return Requests::wait_across(requests, [&] { return all_ended(requests); }, deadline);
  }
  // Wait for one request at a time: a thread that waits for a large transfer helps to copy it.
  for (Request* request : requests) {
    (void)request->endpoint->requests().poll_until(request, deadline).ok();
  }
  return all_ended(requests);
}

Status first_failure(RequestList requests) {
  for (const Request* request : requests) OH_RETURN_IF_ERROR(request->status);
  return {};
}

oh_status post_ready(const std::shared_ptr<Endpoint>& endpoint, std::string what,
                     Readiness::Look look, oh_request** out) {
  Request* request = acquire(endpoint);
  return hand_out(request,
                  endpoint->requests().post_ready(request, std::move(what), std::move(look)), out);
}

oh_status tell(const Receiver::Announced& found, const Peer& peer, oh_message* message) {
  oh_message value{};
  value.size = found.length;
  value.tag = found.tag;
  value.peer_id = peer.link().id;
  value.rank = peer.link().rank;
  return report(write_out(value, message));
}

}  // namespace

extern "C" {

oh_status oh_request_poll_all(oh_request* const* handles, size_t count, int64_t timeout_ns) {
  OH_REPORT_IF_ERROR(check_requests(handles, count));
  RequestList requests = as_requests(handles, count);
  Result<Deadline> deadline = deadline_of(requests, timeout_ns);
  OH_REPORT_IF_ERROR(deadline.status());
  if (!wait_for_all(requests, *deadline)) return OH_IN_PROGRESS;
  return report(first_failure(requests));
}

oh_status oh_request_wait_all(oh_request* const* handles, size_t count, int64_t timeout_ns) {
  OH_REPORT_IF_ERROR(check_requests(handles, count));
  RequestList requests = as_requests(handles, count);
  Result<Deadline> deadline = deadline_of(requests, timeout_ns);
  OH_REPORT_IF_ERROR(deadline.status());
  if (!wait_for_all(requests, *deadline)) {
    for (Request* request : requests) {
      (void)request->endpoint->requests().wait(request, *deadline).ok();
    }
  }
  return report(first_failure(requests));
}

oh_status oh_request_poll_any(oh_request* const* handles, size_t count, int64_t timeout_ns,
                              size_t* index) {
  OH_CHECK_ARGUMENT(index);
  OH_REPORT_IF_ERROR(check_requests(handles, count));
  if (count == 0) {
    return report(error(OH_ERR_INVALID, "none of 0 requests will ever end: give one at least"));
  }
  RequestList requests = as_requests(handles, count);
  Result<Deadline> deadline = deadline_of(requests, timeout_ns);
  OH_REPORT_IF_ERROR(deadline.status());
  auto one_ended = [&] {
    for (size_t i = 0; i < count; ++i) {
      if (!requests[i]->ended()) continue;
      *index = i;
      return true;
    }
    return false;
  };
  return Requests::wait_across(requests, one_ended, *deadline) ? OH_OK : OH_IN_PROGRESS;
}

oh_status oh_endpoint_wait_notification(oh_endpoint* endpoint, void* data, size_t* size,
                                        oh_message* from, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(size);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  Result<Deadline> deadline = deadline_of(timeout_ns, endpoint->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  while (true) {
    oh_status status = oh_endpoint_notification(endpoint, data, size, from);
    if (status != OH_AGAIN) return status;
    OH_REPORT_IF_ERROR(endpoint->endpoint->notifications().wait(*deadline));
  }
}

oh_status oh_peer_probe(oh_peer* peer, uint64_t tag, int64_t timeout_ns, oh_message* message) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(message);
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/true));
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  Result<Deadline> deadline = deadline_of(timeout_ns, peer->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Receiver::Announced found;
  OH_REPORT_IF_ERROR(probe(*peer->endpoint, *peer->peer, tag, *deadline, &found));
  return tell(found, *peer->peer, message);
}

oh_status oh_endpoint_probe(oh_endpoint* endpoint, uint64_t tag, int64_t timeout_ns,
                            oh_message* message) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(message);
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/true));
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  Result<Deadline> deadline = deadline_of(timeout_ns, endpoint->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Receiver::Announced found;
  Result<std::shared_ptr<Peer>> source = probe_any(*endpoint->endpoint, tag, *deadline, &found);
  OH_REPORT_IF_ERROR(source.status());
  return tell(found, **source, message);
}

oh_status oh_endpoint_accept_ready(oh_endpoint* endpoint, oh_request** request) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(request);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  return post_ready(
      endpoint->endpoint, "no peer connected to this endpoint",
      [owner = endpoint->endpoint.get()] { return owner->incoming().has_peer(); }, request);
}

oh_status oh_endpoint_notification_ready(oh_endpoint* endpoint, oh_request** request) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(request);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  return post_ready(
      endpoint->endpoint, "no notification came",
      [owner = endpoint->endpoint.get()] { return owner->notifications().is_ready(); }, request);
}

oh_status oh_peer_message_ready(oh_peer* peer, uint64_t tag, oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(request);
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/true));
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  return post_ready(
      peer->endpoint, "no message came from " + peer->peer->link().name,
      [peer = peer->peer, tag] { return has_message(*peer, tag, nullptr); }, request);
}

oh_status oh_peer_signal_ready(oh_peer* peer, uint32_t slot, uint64_t count, oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(request);
  OH_REPORT_IF_ERROR(check_slot(slot));
  OH_REPORT_IF_ERROR(peer->endpoint->usable());
  return post_ready(
      peer->endpoint,
      strf("%llu signals on slot %u did not come from %s", static_cast<unsigned long long>(count),
           slot, peer->peer->link().name.c_str()),
      [peer = peer->peer, slot, count] { return has_signals(*peer, slot, count); }, request);
}

oh_status oh_request_arm_listed(oh_request* handle) {
  OH_CHECK_ARGUMENT(handle);
  Request* request = as_request(handle);
  OH_REPORT_IF_ERROR(why_no_wait(*request));
  return report(request->endpoint->requests().arm(request, Request::kList));
}

oh_status oh_endpoint_ended_fd(oh_endpoint* endpoint, int* fd) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(fd);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  Result<int> event = endpoint->endpoint->requests().completions().listed().fd();
  OH_REPORT_IF_ERROR(event.status());
  *fd = *event;
  return OH_OK;
}

// Also works on a closed endpoint, whose requests have all ended.
oh_status oh_endpoint_take_ended(oh_endpoint* endpoint, oh_request** requests, size_t* count) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(count);
  if (*count > 0) OH_CHECK_ARGUMENT(requests);
  OH_REPORT_IF_ERROR(why_forked(*endpoint->endpoint));
  Completions& completions = endpoint->endpoint->requests().completions();
  // Clear before reading the list: a request that ends in between makes it readable again.
  completions.listed().clear();
  *count = completions.pool().take_ended({reinterpret_cast<Request**>(requests), *count});
  return OH_OK;
}

}  // extern "C"
