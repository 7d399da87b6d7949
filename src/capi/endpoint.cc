// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

namespace {

oh_status register_region(oh_endpoint* endpoint, void* data, size_t size, RegionAccess access,
                          oh_region** region) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(region);
  Result<std::shared_ptr<RegionRecord>> made =
      endpoint->endpoint->memory().register_region(data, size, access);
  OH_REPORT_IF_ERROR(made.status());
  *region = new oh_region{endpoint->endpoint, std::move(*made)};
  return OH_OK;
}

}  // namespace

extern "C" {

oh_status oh_endpoint_create(const oh_endpoint_options* options, oh_endpoint** endpoint) {
  OH_CHECK_ARGUMENT(endpoint);
  Config config;
  Result<EndpointOptions> checked = endpoint_options(options, &config);
  OH_REPORT_IF_ERROR(checked.status());
  Result<std::shared_ptr<Endpoint>> made = Endpoint::create(config, *checked);
  OH_REPORT_IF_ERROR(made.status());
  *endpoint = new oh_endpoint{std::move(*made)};
  return OH_OK;
}

void oh_endpoint_close(oh_endpoint* endpoint) {
  if (endpoint) endpoint->endpoint->close();
}

void oh_endpoint_destroy(oh_endpoint* endpoint) {
  if (!endpoint || !endpoint->endpoint->is_of_this_process()) return;
  const AwaitsCallbacks end(*endpoint->endpoint);
  endpoint->endpoint->close();
  delete endpoint;
}

oh_status oh_endpoint_address(oh_endpoint* endpoint, void* address, size_t* size) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(size);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  return answer(copy_out(endpoint->endpoint->own_address().encode(), address, size));
}

oh_status oh_endpoint_device(oh_endpoint* endpoint, int32_t* ordinal) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(ordinal);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  const std::shared_ptr<cuda::Gpu>& gpu = endpoint->endpoint->device().gpu();
  *ordinal = gpu ? gpu->facts().ordinal : -1;
  return OH_OK;
}

oh_status oh_endpoint_connect(oh_endpoint* endpoint, const void* address, size_t size,
                              int64_t timeout_ns, oh_peer** peer) {
  OH_CHECK_ARGUMENT(endpoint);
  if (size > 0) OH_CHECK_ARGUMENT(address);  // connect() reports an empty address
  OH_CHECK_ARGUMENT(peer);
  Result<Deadline> deadline = deadline_of(timeout_ns, endpoint->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Result<std::shared_ptr<Peer>> made = endpoint->endpoint->connect(
      {static_cast<const uint8_t*>(address), size}, LinkPurpose{}, *deadline);
  OH_REPORT_IF_ERROR(made.status());
  *peer = new oh_peer{endpoint->endpoint, std::move(*made)};
  return OH_OK;
}

oh_status oh_endpoint_accept(oh_endpoint* endpoint, int64_t timeout_ns, oh_peer** peer) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(peer);
  Result<Deadline> deadline = deadline_of(timeout_ns, endpoint->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Result<std::shared_ptr<Peer>> made = endpoint->endpoint->incoming().accept(*deadline);
  OH_REPORT_IF_ERROR(made.status());
  *peer = new oh_peer{endpoint->endpoint, std::move(*made)};
  return OH_OK;
}

oh_status oh_endpoint_progress(oh_endpoint* endpoint) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  endpoint->endpoint->progress();
  return OH_OK;
}

oh_status oh_endpoint_trim(oh_endpoint* endpoint) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  endpoint->endpoint->device().trim();
  return OH_OK;
}

oh_status oh_endpoint_start_progress(oh_endpoint* endpoint) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  return report(endpoint->endpoint->progress_thread().start());
}

oh_status oh_endpoint_event_fd(oh_endpoint* endpoint, int* fd) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(fd);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  Result<int> event = endpoint->endpoint->requests().completions().armed().fd();
  OH_REPORT_IF_ERROR(event.status());
  *fd = *event;
  return OH_OK;
}

oh_status oh_endpoint_clear_event(oh_endpoint* endpoint) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  endpoint->endpoint->requests().completions().armed().clear();
  return OH_OK;
}

oh_status oh_endpoint_recv(oh_endpoint* endpoint, void* data, size_t capacity, uint64_t tag,
                           const oh_transfer_options* given, oh_message* message) {
  OH_CHECK_ARGUMENT(endpoint);
  Endpoint& owner = *endpoint->endpoint;
  oh_transfer_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/true));
  OH_REPORT_IF_ERROR(check_buffer(data, capacity));
  Result<Deadline> deadline = deadline_of(options.timeout_ns, owner.config());
  OH_REPORT_IF_ERROR(deadline.status());
  Request request;
  prepare(&request, owner, OpKind::kRecv, data, capacity, tag);
  OH_REPORT_IF_ERROR(prepare_memory(&request, options));
  OH_REPORT_IF_ERROR(owner.requests().post_any_source(&request));
  OH_REPORT_IF_ERROR(owner.requests().wait(&request, *deadline));
  return message ? report(read_message(request, message)) : OH_OK;
}

oh_status oh_endpoint_irecv(oh_endpoint* endpoint, void* data, size_t capacity, uint64_t tag,
                            const oh_transfer_options* given, oh_request** out) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(out);
  oh_transfer_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  OH_REPORT_IF_ERROR(check_tag(tag, /*any_allowed=*/true));
  OH_REPORT_IF_ERROR(check_buffer(data, capacity));
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  Request* request = acquire(endpoint->endpoint);
  prepare(request, *endpoint->endpoint, OpKind::kRecv, data, capacity, tag);
  Status status = prepare_memory(request, options);
  if (status.ok()) status = endpoint->endpoint->requests().post_any_source(request);
  return hand_out(request, status, out);
}

oh_status oh_endpoint_notification(oh_endpoint* endpoint, void* data, size_t* size,
                                   oh_message* from) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(size);
  OH_REPORT_IF_ERROR(endpoint->endpoint->usable());
  Notification notification;
  Result<bool> taken =
      endpoint->endpoint->notifications().take(data ? *size : 0, &notification, size);
  if (!taken.ok()) return answer(taken.status());  // OH_ERR_RANGE: the buffer is too small
  if (!*taken) return OH_AGAIN;
  if (*size) std::memcpy(data, notification.bytes.data(), *size);
  if (!from) return OH_OK;
  oh_message message{};
  message.size = *size;
  message.peer_id = notification.peer_id;
  message.rank = notification.peer_rank;
  return report(write_out(message, from));
}

// ---- Regions ----------------------------------------------------------------------------------

oh_status oh_region_register(oh_endpoint* endpoint, void* data, size_t size, oh_region** region) {
  return register_region(endpoint, data, size, RegionAccess::kReadWrite, region);
}

oh_status oh_region_register_read_only(oh_endpoint* endpoint, const void* data, size_t size,
                                       oh_region** region) {
  return register_region(endpoint, const_cast<void*>(data), size, RegionAccess::kReadOnly, region);
}

oh_status oh_region_deregister(oh_region* region, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(region);
  Result<Deadline> deadline = deadline_of(timeout_ns, region->endpoint->config());
  OH_REPORT_IF_ERROR(deadline.status());
  return report(region->endpoint->memory().deregister(*region->region, *deadline));
}

void oh_region_release(oh_region* region) {
  if (!region || !region->endpoint->is_of_this_process()) return;
  const AwaitsCallbacks end(*region->endpoint);
  // A closed endpoint has already retired the region; ignore the error.
  (void)region->endpoint->memory()
      .deregister(*region->region, Deadline::after(region->endpoint->config().timeout_ns()))
      .ok();
  delete region;
}

oh_status oh_region_descriptor(oh_region* region, void* descriptor, size_t* size) {
  OH_CHECK_ARGUMENT(region);
  OH_CHECK_ARGUMENT(size);
  OH_REPORT_IF_ERROR(region->endpoint->usable());
  return answer(
      copy_out(region->endpoint->memory().export_region(*region->region), descriptor, size));
}

void* oh_region_data(oh_region* region) { return region ? region->region->base : nullptr; }
size_t oh_region_size(oh_region* region) { return region ? region->region->length : 0; }

oh_status oh_shared_alloc(size_t size, void** data) {
  OH_CHECK_ARGUMENT(data);
  Result<std::shared_ptr<SharedBlock>> block = SharedHeap::instance().allocate(size);
  OH_REPORT_IF_ERROR(block.status());
  *data = (*block)->mapping.data();
  return OH_OK;
}

oh_status oh_shared_free(void* data) {
  if (!data) return OH_OK;
  return report(SharedHeap::instance().free(data));
}

}  // extern "C"
