// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "capi/handles.h"
#include "stream/proxy/proxy.h"

namespace oh {
namespace {
std::string& last_text() {
  thread_local std::string text = "no error";
  return text;
}
}  // namespace

oh_status report(const Status& status) {
  g_metrics.count_error(status.code());
  return answer(status);
}

oh_status answer(const Status& status) {
  if (!status.ok()) last_text() = status.text();
  return status.code();
}

oh_status null_argument(const char* function, const char* name) {
  return report(error(OH_ERR_INVALID, "%s: '%s' is NULL", function, name));
}

Status copy_out(ByteView bytes, void* out, size_t* size) {
  size_t capacity = *size;
  *size = bytes.size();
  if (bytes.size() > capacity || (!out && !bytes.empty())) {
    return error(OH_ERR_RANGE, "%zu bytes are needed, there is room for %zu", bytes.size(),
                 out ? capacity : 0);
  }
  if (out && !bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
  return {};
}

Status check_timeout(int64_t timeout_ns) {
  if (timeout_ns >= 0) return {};
  return error(OH_ERR_INVALID,
               "a timeout of %lld ns: use 0 for the default, OH_TIMEOUT_NEVER for none",
               static_cast<long long>(timeout_ns));
}

Deadline deadline_after(int64_t timeout_ns, const Config& config) {
  return Deadline::after(timeout_ns == OH_TIMEOUT_DEFAULT ? config.timeout_ns() : timeout_ns);
}

Result<Deadline> deadline_of(int64_t timeout_ns, const Config& config) {
  OH_RETURN_IF_ERROR(check_timeout(timeout_ns));
  return deadline_after(timeout_ns, config);
}

Status read_message(const Request& request, oh_message* message) {
  // Fast path: fill a struct of the current size in place, without an intermediate copy.
  oh_message older;
  oh_message& value = message->struct_size == sizeof(older) ? *message : older;
  value.size = request.nbytes;
  value.tag = request.message_tag;
  value.path = request.path;
  value.peer_id = request.peer_id;
  value.rank = request.peer_rank;
  value.duration_ns = request.plain ? 0 : request.took;  // plain requests measure no time
  return &value == message ? Status() : write_out(value, message);
}

oh_status give_up(Request* request, const Status& why) {
  request->done.store(1);
  release(request);
  return report(why);
}

oh_status hand_out(Request* request, const Status& posted, oh_request** out) {
  if (!posted.ok()) return give_up(request, posted);
  *out = as_handle(request);
  return OH_OK;
}

Result<EndpointOptions> endpoint_options(const oh_endpoint_options* given, Config* config) {
  oh_endpoint_options options;
  OH_RETURN_IF_ERROR(read_options(given, &options));
  OH_ASSIGN_OR_RETURN(*config, Config::from_environment());
  if (options.max_inline > 65536) {
    return error(OH_ERR_INVALID, "max_inline is %zu: at most 65536 bytes can be asked for",
                 options.max_inline);
  }
  EndpointOptions result;
  if (options.device && std::string_view(options.device) != "host") result.device = options.device;
  result.max_inline = options.max_inline;
  result.max_inline_given = options.set_max_inline != 0;
  result.progress_thread = options.progress_thread != 0;
  result.make_proxy = make_proxy;
  return result;
}

}  // namespace oh

extern "C" {

const char* oh_status_name(oh_status status) { return oh::status_name(status); }
const char* oh_status_text(oh_status status) { return oh::status_text(status); }
oh_scope oh_status_scope(oh_status status) { return oh::status_scope(status); }
const char* oh_error_text(void) { return oh::last_text().c_str(); }

const char* oh_path_name(oh_path path) {
  switch (path) {
#define OH_PATH_CASE(name, value, text) \
  case name:                            \
    return text;
    OH_PATH_LIST(OH_PATH_CASE)
#undef OH_PATH_CASE
  }
  return "unknown";
}

}  // extern "C"
