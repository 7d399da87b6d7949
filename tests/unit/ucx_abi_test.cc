// SPDX-License-Identifier: Apache-2.0
//
// Compares our declarations of UCX's binary interface with UCX's headers. Compiled if CMake finds
// them.
#include <gtest/gtest.h>
#include <ucp/api/ucp.h>

#include <cstddef>
#include <type_traits>

#include "platform/ucx/abi.h"

// In libucs, but in no installed header.
extern "C" void ucs_debug_disable_signals();

namespace oh::ucx {
namespace {

// Functions must have as many parameters, each of the same size, and results of the same size.
template <typename Ours, typename Theirs>
struct SameShape : std::false_type {};
template <typename Result, typename... Parameters, typename TheirResult, typename... Theirs>
  requires(sizeof...(Parameters) == sizeof...(Theirs))
struct SameShape<Result(Parameters...), TheirResult(Theirs...)>
    : std::bool_constant<(... && (sizeof(Parameters) == sizeof(Theirs))) &&
                         std::is_void_v<Result> == std::is_void_v<TheirResult>> {};
#define OH_UCX_SHAPE(name, symbol, result, parameters) \
  static_assert(SameShape<result parameters, decltype(::symbol)>::value, #symbol);
OH_UCX_FUNCTIONS(OH_UCX_SHAPE)
#undef OH_UCX_SHAPE

}  // namespace
}  // namespace oh::ucx

namespace {

namespace ours = oh::ucx;

#define SAME(a, b) static_assert(0LL + (a) == 0LL + (b))
#define SAME_FIELD(a, f, b, g) \
  static_assert(offsetof(a, f) == offsetof(b, g) && sizeof(a::f) == sizeof(b::g))

// Codes.
static_assert(sizeof(ours::Code) == sizeof(ucs_status_t));
SAME(ours::kOk, UCS_OK);
SAME(ours::kInProgress, UCS_INPROGRESS);
SAME(ours::kNoResource, UCS_ERR_NO_RESOURCE);
SAME(ours::kNoMemory, UCS_ERR_NO_MEMORY);
SAME(ours::kUnreachable, UCS_ERR_UNREACHABLE);
SAME(ours::kUnsupported, UCS_ERR_UNSUPPORTED);
SAME(ours::kRejected, UCS_ERR_REJECTED);
SAME(ours::kNotConnected, UCS_ERR_NOT_CONNECTED);
SAME(ours::kCanceled, UCS_ERR_CANCELED);
SAME(ours::kConnectionReset, UCS_ERR_CONNECTION_RESET);
SAME(ours::kEndpointTimeout, UCS_ERR_ENDPOINT_TIMEOUT);
SAME(ours::kCodeLast, UCS_ERR_LAST);

// Flags.
SAME(ours::kFeatureRma, UCP_FEATURE_RMA);
SAME(ours::kFeatureWakeup, UCP_FEATURE_WAKEUP);
SAME(ours::kFeatureAm, UCP_FEATURE_AM);
SAME(ours::kThreadSerialized, UCS_THREAD_MODE_SERIALIZED);
SAME(ours::kCloseForce, UCP_EP_CLOSE_FLAG_FORCE);
SAME(ours::kSendEager, UCP_AM_SEND_FLAG_EAGER);

// Structs: those of the headers may be longer by appended fields.
using ContextParams = ours::ContextParams;
static_assert(sizeof(ContextParams) <= sizeof(ucp_params_t));
SAME(ContextParams::kFeatures, UCP_PARAM_FIELD_FEATURES);
SAME(ContextParams::kSharedByThreads, UCP_PARAM_FIELD_MT_WORKERS_SHARED);
SAME(ContextParams::kName, UCP_PARAM_FIELD_NAME);
SAME_FIELD(ContextParams, fields, ucp_params_t, field_mask);
SAME_FIELD(ContextParams, features, ucp_params_t, features);
SAME_FIELD(ContextParams, mt_workers_shared, ucp_params_t, mt_workers_shared);
SAME_FIELD(ContextParams, name, ucp_params_t, name);

using WorkerParams = ours::WorkerParams;
static_assert(sizeof(WorkerParams) <= sizeof(ucp_worker_params_t));
SAME(WorkerParams::kThreadMode, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
SAME_FIELD(WorkerParams, fields, ucp_worker_params_t, field_mask);
SAME_FIELD(WorkerParams, thread_mode, ucp_worker_params_t, thread_mode);

// UCX writes the fields that the mask names.
using WorkerAttributes = ours::WorkerAttributes;
SAME(WorkerAttributes::kAddress, UCP_WORKER_ATTR_FIELD_ADDRESS);
SAME(WorkerAttributes::kAddressFlags, UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS);
SAME(ours::kNetworkOnly, UCP_WORKER_ADDRESS_FLAG_NET_ONLY);
SAME_FIELD(WorkerAttributes, address_flags, ucp_worker_attr_t, address_flags);
SAME(WorkerAttributes::kMaxAmHeader, UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER);
SAME_FIELD(WorkerAttributes, fields, ucp_worker_attr_t, field_mask);
SAME_FIELD(WorkerAttributes, address, ucp_worker_attr_t, address);
SAME_FIELD(WorkerAttributes, address_length, ucp_worker_attr_t, address_length);
SAME_FIELD(WorkerAttributes, max_am_header, ucp_worker_attr_t, max_am_header);

using EndpointParams = ours::EndpointParams;
static_assert(sizeof(EndpointParams) <= sizeof(ucp_ep_params_t));
SAME(EndpointParams::kAddress, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME(EndpointParams::kErrorMode, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
SAME(EndpointParams::kErrorHandler, UCP_EP_PARAM_FIELD_ERR_HANDLER);
SAME(EndpointParams::kPeer, UCP_ERR_HANDLING_MODE_PEER);
SAME_FIELD(EndpointParams, fields, ucp_ep_params_t, field_mask);
SAME_FIELD(EndpointParams, address, ucp_ep_params_t, address);
SAME_FIELD(EndpointParams, error_mode, ucp_ep_params_t, err_mode);
SAME_FIELD(EndpointParams, on_error, ucp_ep_params_t, err_handler.cb);
SAME_FIELD(EndpointParams, on_error_context, ucp_ep_params_t, err_handler.arg);

#if UCP_API_VERSION >= UCP_VERSION(1, 14)
using EndpointAttributes = ours::EndpointAttributes;
SAME(EndpointAttributes::kTransports, UCP_EP_ATTR_FIELD_TRANSPORTS);
SAME_FIELD(EndpointAttributes, fields, ucp_ep_attr_t, field_mask);
SAME_FIELD(EndpointAttributes, transports, ucp_ep_attr_t, transports.entries);
SAME_FIELD(EndpointAttributes, count, ucp_ep_attr_t, transports.num_entries);
SAME_FIELD(EndpointAttributes, entry_size, ucp_ep_attr_t, transports.entry_size);
using Transport = EndpointAttributes::Transport;
static_assert(sizeof(Transport) == sizeof(ucp_transport_entry_t));
SAME_FIELD(Transport, name, ucp_transport_entry_t, transport_name);
SAME_FIELD(Transport, device, ucp_transport_entry_t, device_name);
#endif

using RequestParam = ours::RequestParam;
static_assert(sizeof(RequestParam) <= sizeof(ucp_request_param_t));
SAME(RequestParam::kCallback, UCP_OP_ATTR_FIELD_CALLBACK);
SAME(RequestParam::kUserData, UCP_OP_ATTR_FIELD_USER_DATA);
SAME(RequestParam::kFlags, UCP_OP_ATTR_FIELD_FLAGS);
SAME(RequestParam::kMemoryType, UCP_OP_ATTR_FIELD_MEMORY_TYPE);
SAME(RequestParam::kMemory, UCP_OP_ATTR_FIELD_MEMH);
SAME_FIELD(RequestParam, attributes, ucp_request_param_t, op_attr_mask);
SAME_FIELD(RequestParam, flags, ucp_request_param_t, flags);
SAME_FIELD(RequestParam, callback, ucp_request_param_t, cb);
SAME_FIELD(RequestParam, user_data, ucp_request_param_t, user_data);
SAME_FIELD(RequestParam, memory_type, ucp_request_param_t, memory_type);
SAME_FIELD(RequestParam, memory, ucp_request_param_t, memh);
SAME(0, UCS_MEMORY_TYPE_HOST);

using MapParams = ours::MapParams;
static_assert(sizeof(MapParams) <= sizeof(ucp_mem_map_params_t));
SAME(MapParams::kAddress, UCP_MEM_MAP_PARAM_FIELD_ADDRESS);
SAME(MapParams::kLength, UCP_MEM_MAP_PARAM_FIELD_LENGTH);
SAME(MapParams::kMemoryType, UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE);
SAME_FIELD(MapParams, fields, ucp_mem_map_params_t, field_mask);
SAME_FIELD(MapParams, address, ucp_mem_map_params_t, address);
SAME_FIELD(MapParams, length, ucp_mem_map_params_t, length);
SAME_FIELD(MapParams, flags, ucp_mem_map_params_t, flags);
SAME_FIELD(MapParams, protection, ucp_mem_map_params_t, prot);
SAME_FIELD(MapParams, memory_type, ucp_mem_map_params_t, memory_type);

using AmReceived = ours::AmReceived;
SAME(AmReceived::kData, UCP_AM_RECV_ATTR_FLAG_DATA);
SAME(AmReceived::kRendezvous, UCP_AM_RECV_ATTR_FLAG_RNDV);
SAME_FIELD(AmReceived, attributes, ucp_am_recv_param_t, recv_attr);

using AmHandler = ours::AmHandler;
static_assert(sizeof(AmHandler) <= sizeof(ucp_am_handler_param_t));
SAME(AmHandler::kId, UCP_AM_HANDLER_PARAM_FIELD_ID);
SAME(AmHandler::kFlags, UCP_AM_HANDLER_PARAM_FIELD_FLAGS);
SAME(AmHandler::kCallback, UCP_AM_HANDLER_PARAM_FIELD_CB);
SAME(AmHandler::kContext, UCP_AM_HANDLER_PARAM_FIELD_ARG);
SAME(AmHandler::kWholeMessage, UCP_AM_FLAG_WHOLE_MSG);
SAME_FIELD(AmHandler, id, ucp_am_handler_param_t, id);
SAME_FIELD(AmHandler, flags, ucp_am_handler_param_t, flags);
SAME_FIELD(AmHandler, callback, ucp_am_handler_param_t, cb);
SAME_FIELD(AmHandler, context, ucp_am_handler_param_t, arg);

TEST(UcxAbi, ErrorsArePointersNearTheTop) {
  EXPECT_TRUE(ours::is_error(UCS_STATUS_PTR(UCS_ERR_NO_MEMORY)));
  EXPECT_EQ(ours::code_of(UCS_STATUS_PTR(UCS_ERR_NO_MEMORY)), ours::kNoMemory);
  int here = 0;
  EXPECT_FALSE(ours::is_error(&here));
  EXPECT_FALSE(ours::is_error(nullptr));
}

}  // namespace
