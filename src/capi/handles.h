// SPDX-License-Identifier: Apache-2.0
//
// Definitions of the opaque handles of the C API, and helpers that all calls share.
//
// Threading: handles are immutable after creation.
#pragma once

#include <cstring>
#include <limits>
#include <memory>

#include "calls/atomic_calls.h"
#include "calls/probes.h"
#include "communicator/communicator.h"
#include "endpoint/endpoint.h"
#include "onehop/onehop.h"

struct oh_endpoint {
  std::shared_ptr<oh::Endpoint> endpoint;
};

struct oh_peer {
  std::shared_ptr<oh::Endpoint> endpoint;
  std::shared_ptr<oh::Peer> peer;
};

struct oh_region {
  std::shared_ptr<oh::Endpoint> endpoint;
  std::shared_ptr<oh::RegionRecord> region;
};

namespace oh {
// A peer's region, shared by its handle and by all batches that were prepared with it.
struct AttachedRegion {
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<Peer> peer;
  RemoteTarget target;
  ~AttachedRegion();
};
}  // namespace oh

struct oh_remote_region {
  std::shared_ptr<const oh::AttachedRegion> attached;
};

struct oh_comm {
  std::shared_ptr<oh::Communicator> comm;
  oh_endpoint endpoint;
};

namespace oh {

// Stores the text for oh_error_text(), counts the error and returns its code.
oh_status report(const Status& status);
// As report(), but does not count the error: for failures that are regular results, such as the end
// of a list or a buffer that is too small.
oh_status answer(const Status& status);

// Declare one before you delete a handle. Its destructor waits for callbacks, so that the process
// may exit after its last handle.
class AwaitsCallbacks {
 public:
  explicit AwaitsCallbacks(const Endpoint& endpoint) : node_(endpoint.node()) {}
  ~AwaitsCallbacks() { node_->await_last_callbacks(); }
  AwaitsCallbacks(const AwaitsCallbacks&) = delete;
  AwaitsCallbacks& operator=(const AwaitsCallbacks&) = delete;

 private:
  std::shared_ptr<Node> node_;
};

// Reports a null handle or argument.
oh_status null_argument(const char* function, const char* name);
#define OH_CHECK_ARGUMENT(argument) \
  if (!(argument)) return ::oh::null_argument(__func__, #argument)

#define OH_REPORT_IF_ERROR(expression)                     \
  do {                                                     \
    ::oh::Status oh_report_ = (expression);                \
    if (!oh_report_.ok()) return ::oh::report(oh_report_); \
  } while (false)

// Copies the caller's options into the current struct. Members that the caller's version lacks are
// zero. NULL: all defaults.
template <typename T>
Status read_options(const T* options, T* out) {
  *out = T{};
  if (!options) return {};
  if (options->struct_size < sizeof(size_t) || options->struct_size > 4096) {
    return error(OH_ERR_INVALID, "struct_size is %zu: set it to the size of the struct",
                 options->struct_size);
  }
  std::memcpy(out, options, std::min(options->struct_size, sizeof(T)));
  return {};
}

// Copies a struct to the caller's, up to the size of the caller's version.
template <typename T>
Status write_out(T value, T* out) {
  size_t size = out->struct_size;
  if (size < sizeof(size_t)) {
    return error(OH_ERR_INVALID, "struct_size is %zu: set it to the size of the struct", size);
  }
  value.struct_size = size;
  std::memcpy(out, &value, std::min(size, sizeof(T)));
  return {};
}

Status copy_out(ByteView bytes, void* out, size_t* size);

Status check_timeout(int64_t timeout_ns);
// Requires a timeout that check_timeout() accepted.
Deadline deadline_after(int64_t timeout_ns, const Config& config);
Result<Deadline> deadline_of(int64_t timeout_ns, const Config& config);

inline Status check_tag(uint64_t tag, bool any_allowed) {
  if (tag <= OH_TAG_MAX || (any_allowed && tag == OH_ANY_TAG)) return {};
  return error(OH_ERR_INVALID, "tag %llu: tags are 0 to %llu%s",
               static_cast<unsigned long long>(tag), static_cast<unsigned long long>(OH_TAG_MAX),
               any_allowed ? ", or OH_ANY_TAG" : "");
}

inline Status check_slot(uint32_t slot) {
  if (slot < OH_SIGNAL_SLOTS) return {};
  return error(OH_ERR_INVALID, "signal slot %u: slots are 0 to %d", slot, OH_SIGNAL_SLOTS - 1);
}

inline Status check_notification(size_t size) {
  if (size <= NotificationParts::kLongest) return {};
  return error(OH_ERR_INVALID, "a notification of %zu bytes: at most %llu are allowed", size,
               static_cast<unsigned long long>(NotificationParts::kLongest));
}

inline Status check_buffer(const void* data, size_t size) {
  if (data || size == 0) return {};
  return error(OH_ERR_INVALID, "a buffer of %zu bytes at NULL", size);
}

// Initializes a request.
inline void prepare(Request* request, Endpoint& endpoint, OpKind kind, void* data, size_t size,
                    uint64_t tag) {
  request->endpoint = &endpoint;
  request->kind = kind;
  request->data = static_cast<uint8_t*>(data);
  request->size = size;
  request->tag = tag;
}

template <typename Options>
Result<AfterOption> after_option(const Options& options) {
  if (options.after < OH_AFTER_NOTHING || options.after > OH_AFTER_EVENT) {
    return error(OH_ERR_INVALID, "after is %d: there are OH_AFTER_NOTHING, _STREAM and _EVENT",
                 options.after);
  }
  return AfterOption{static_cast<AfterOption::Kind>(options.after), options.after_handle,
                     options.on_device != 0};
}

// Classifies the request's memory and sets what it must wait for.
inline Status prepare_memory(Request* request, const oh_transfer_options& options) {
  OH_ASSIGN_OR_RETURN(AfterOption after, after_option(options));
  return request->endpoint->requests().locate_memory(request, after);
}

// Whether a call may use the fast path: host memory only, and no option other than a timeout.
inline bool host_only(const Endpoint& endpoint, const oh_transfer_options* options) {
  return endpoint.has_fast_path() && (!options || (options->struct_size == sizeof(*options) &&
                                                   !options->after && !options->on_device));
}

Status read_message(const Request& request, oh_message* message);

inline oh_request* as_handle(Request* request) { return reinterpret_cast<oh_request*>(request); }
inline Request* as_request(oh_request* handle) { return reinterpret_cast<Request*>(handle); }

// Returns a pooled request that keeps its endpoint alive until it is released.
inline Request* acquire(const std::shared_ptr<Endpoint>& endpoint) {
  return endpoint->requests().acquire(*endpoint);
}
inline void release(Request* request) {
  Endpoint& endpoint = *request->endpoint;
  if (endpoint.is_usable()) {
    endpoint.requests().release(request);
  } else if (endpoint.is_of_this_process()) {
    const AwaitsCallbacks end(endpoint);
    endpoint.requests().release(request);  // the last request may destroy the endpoint
  }
}
// Fails in a child of fork(): there the endpoint's locks may be held by no thread, and its
// descriptors may be another owner's. For calls that a closed endpoint answers too.
inline Status why_forked(const Endpoint& endpoint) {
  return endpoint.is_of_this_process() ? Status() : endpoint.why_unusable();
}
// Returns the error of a wait on an unusable endpoint. A request of an endpoint that is being
// closed is still in progress: close() ends it.
inline Status why_no_wait(const Request& request) {
  const Endpoint& endpoint = *request.endpoint;
  return endpoint.is_of_this_process() ? endpoint.device().lost() : endpoint.why_unusable();
}
// Releases a pooled request that could not be posted, and reports why.
oh_status give_up(Request* request, const Status& why);
// Returns a posted pooled request to the caller, or releases it if `posted` is an error.
oh_status hand_out(Request* request, const Status& posted, oh_request** out);

Result<EndpointOptions> endpoint_options(const oh_endpoint_options* options, Config* config);

}  // namespace oh
