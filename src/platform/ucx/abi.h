// SPDX-License-Identifier: Apache-2.0
//
// The part of UCX's ABI that onehop uses. Declared here, because libucp is opened at run time and
// its headers may be missing. tests/unit/ucx_abi_test.cc compares the declarations with UCX's
// headers where CMake finds them. Fields appended to UCX's structs since 1.13 are not declared: UCX
// reads only fields that the mask names.
//
// Threading: declarations only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oh::ucx {

enum Code : int8_t {
  kOk = 0,
  kInProgress = 1,
  kNoResource = -2,
  kNoMemory = -4,
  kUnreachable = -6,
  kCanceled = -16,
  kUnsupported = -22,
  kRejected = -23,
  kNotConnected = -24,
  kConnectionReset = -25,
  kEndpointTimeout = -80,
};
inline constexpr int kCodeLast = -100;

// Result of a nonblocking call: null (done), a request, or an error code.
using StatusPointer = void*;
inline bool is_error(StatusPointer pointer) {
  return reinterpret_cast<uintptr_t>(pointer) >= static_cast<uintptr_t>(kCodeLast);
}
inline Code code_of(StatusPointer pointer) {
  return static_cast<Code>(reinterpret_cast<intptr_t>(pointer));
}

using Config = struct ucp_config*;
using Context = struct ucp_context*;
using Worker = struct ucp_worker*;
using Endpoint = struct ucp_ep*;
using Address = struct ucp_address*;
using Memory = struct ucp_mem*;
using RemoteKey = struct ucp_rkey*;

enum Feature : uint64_t { kFeatureRma = 1 << 1, kFeatureWakeup = 1 << 4, kFeatureAm = 1 << 6 };
enum ThreadMode : uint32_t { kThreadSingle = 0, kThreadSerialized = 1 };

struct ContextParams {
  enum Field : uint64_t { kFeatures = 1 << 0, kSharedByThreads = 1 << 5, kName = 1 << 8 };
  uint64_t fields = 0;
  uint64_t features = 0;
  size_t request_size = 0;
  void (*request_init)(void*) = nullptr;
  void (*request_cleanup)(void*) = nullptr;
  uint64_t tag_sender_mask = 0;
  int mt_workers_shared = 0;
  size_t estimated_num_eps = 0;
  size_t estimated_num_ppn = 0;
  const char* name = nullptr;
};

struct WorkerParams {
  enum Field : uint64_t { kThreadMode = 1 << 0 };
  uint64_t fields = 0;
  ThreadMode thread_mode = kThreadSingle;
  unsigned long cpu_mask[1024 / (8 * sizeof(unsigned long))] = {};
  unsigned events = 0;
  void* user_data = nullptr;
  int event_fd = -1;
  uint64_t flags = 0;
  const char* name = nullptr;
  size_t am_alignment = 0;
  uint64_t client_id = 0;
};

struct WorkerAttributes {
  enum Field : uint64_t { kAddress = 1 << 1, kAddressFlags = 1 << 2, kMaxAmHeader = 1 << 3 };
  uint64_t fields = 0;
  ThreadMode thread_mode = kThreadSingle;
  uint32_t address_flags = 0;
  Address address = nullptr;
  size_t address_length = 0;
  size_t max_am_header = 0;
  char name[32] = {};
  size_t max_debug_string = 0;
};

struct EndpointParams {
  enum Field : uint64_t { kAddress = 1 << 0, kErrorMode = 1 << 1, kErrorHandler = 1 << 2 };
  enum ErrorMode : uint32_t { kNone = 0, kPeer = 1 };
  struct SocketAddress {
    const void* address = nullptr;
    uint32_t length = 0;
  };
  uint64_t fields = 0;
  const void* address = nullptr;
  ErrorMode error_mode = kNone;
  void (*on_error)(void* context, Endpoint endpoint, Code code) = nullptr;
  void* on_error_context = nullptr;
  void* user_data = nullptr;
  unsigned flags = 0;
  SocketAddress remote;
  void* connection_request = nullptr;
  const char* name = nullptr;
  SocketAddress local;
};

// Transports since 1.14.
struct EndpointAttributes {
  enum Field : uint64_t { kTransports = 1 << 3 };
  struct Transport {
    const char* name = nullptr;
    const char* device = nullptr;
  };
  uint64_t fields = 0;
  char name[32] = {};
  alignas(8) char local[128] = {};
  alignas(8) char remote[128] = {};
  Transport* transports = nullptr;  // the caller's array
  unsigned count = 0;               // capacity, then number found
  size_t entry_size = sizeof(Transport);
  void* user_data = nullptr;
};

inline constexpr uint32_t kNetworkOnly = 1 << 0;  // of addresses
inline constexpr uint32_t kCloseForce = 1 << 0;
inline constexpr uint32_t kSendEager = 1 << 1;

struct RequestParam {
  enum Attribute : uint32_t {
    kCallback = 1 << 1,
    kUserData = 1 << 2,
    kFlags = 1 << 4,
    kMemoryType = 1 << 6,
    kMemory = 1 << 8,
  };
  uint32_t attributes = 0;
  uint32_t flags = 0;
  void* request = nullptr;
  union {
    void (*send)(void* request, Code code, void* user_data);
    void (*receive)(void* request, Code code, size_t length, void* user_data);
  } callback = {nullptr};
  uint64_t datatype = 0;
  void* user_data = nullptr;
  void* reply_buffer = nullptr;
  uint32_t memory_type = 0;  // host
  void* received = nullptr;
  Memory memory = nullptr;
};

struct AmReceived {
  enum Attribute : uint64_t { kData = 1 << 16, kRendezvous = 1 << 17 };
  uint64_t attributes;
  Endpoint reply_to;
};

struct AmHandler {
  enum Field : uint64_t { kId = 1 << 0, kFlags = 1 << 1, kCallback = 1 << 2, kContext = 1 << 3 };
  enum Flag : uint32_t { kWholeMessage = 1 << 0 };
  uint64_t fields = 0;
  unsigned id = 0;
  uint32_t flags = 0;
  Code (*callback)(void* context, const void* header, size_t header_size, void* data, size_t size,
                   const AmReceived* received) = nullptr;
  void* context = nullptr;
};

struct MapParams {
  enum Field : uint64_t { kAddress = 1 << 0, kLength = 1 << 1, kMemoryType = 1 << 4 };
  uint64_t fields = 0;
  void* address = nullptr;
  size_t length = 0;
  unsigned flags = 0;
  unsigned protection = 0;
  uint32_t memory_type = 0;  // host
};

inline constexpr unsigned kApiMajor = 1;
inline constexpr unsigned kApiMinor = 13;

// Member, symbol, result, parameters.
#define OH_UCX_FUNCTIONS(X)                                                                        \
  X(version, ucp_get_version, void, (unsigned* major, unsigned* minor, unsigned* release))         \
  X(config_read, ucp_config_read, Code, (const char* prefix, const char* file, Config* config))    \
  X(config_modify, ucp_config_modify, Code, (Config config, const char* name, const char* value))  \
  X(config_release, ucp_config_release, void, (Config config))                                     \
  X(init, ucp_init_version, Code,                                                                  \
    (unsigned major, unsigned minor, const ContextParams* params, Config config,                   \
     Context* context))                                                                            \
  X(worker_create, ucp_worker_create, Code,                                                        \
    (Context context, const WorkerParams* params, Worker* worker))                                 \
  X(worker_destroy, ucp_worker_destroy, void, (Worker worker))                                     \
  X(worker_query, ucp_worker_query, Code, (Worker worker, WorkerAttributes * attributes))          \
  X(release_address, ucp_worker_release_address, void, (Worker worker, Address address))           \
  X(progress, ucp_worker_progress, unsigned, (Worker worker))                                      \
  X(get_efd, ucp_worker_get_efd, Code, (Worker worker, int* fd))                                   \
  X(arm, ucp_worker_arm, Code, (Worker worker))                                                    \
  X(ep_create, ucp_ep_create, Code,                                                                \
    (Worker worker, const EndpointParams* params, Endpoint* endpoint))                             \
  X(ep_query, ucp_ep_query, Code, (Endpoint endpoint, EndpointAttributes * attributes))            \
  X(ep_flush, ucp_ep_flush_nbx, StatusPointer, (Endpoint endpoint, const RequestParam* param))     \
  X(ep_close, ucp_ep_close_nbx, StatusPointer, (Endpoint endpoint, const RequestParam* param))     \
  X(set_am_handler, ucp_worker_set_am_recv_handler, Code,                                          \
    (Worker worker, const AmHandler* handler))                                                     \
  X(am_send, ucp_am_send_nbx, StatusPointer,                                                       \
    (Endpoint endpoint, unsigned id, const void* header, size_t header_size, const void* data,     \
     size_t size, const RequestParam* param))                                                      \
  X(am_receive, ucp_am_recv_data_nbx, StatusPointer,                                               \
    (Worker worker, void* descriptor, void* to, size_t size, const RequestParam* param))           \
  X(am_release, ucp_am_data_release, void, (Worker worker, void* data))                            \
  X(mem_map, ucp_mem_map, Code, (Context context, const MapParams* params, Memory* memory))        \
  X(mem_unmap, ucp_mem_unmap, Code, (Context context, Memory memory))                              \
  X(rkey_pack, ucp_rkey_pack, Code, (Context context, Memory memory, void** packed, size_t* size)) \
  X(rkey_buffer_release, ucp_rkey_buffer_release, void, (void* packed))                            \
  X(rkey_unpack, ucp_ep_rkey_unpack, Code,                                                         \
    (Endpoint endpoint, const void* packed, RemoteKey* key))                                       \
  X(rkey_destroy, ucp_rkey_destroy, void, (RemoteKey key))                                         \
  X(put, ucp_put_nbx, StatusPointer,                                                               \
    (Endpoint endpoint, const void* from, size_t size, uint64_t to, RemoteKey key,                 \
     const RequestParam* param))                                                                   \
  X(get, ucp_get_nbx, StatusPointer,                                                               \
    (Endpoint endpoint, void* to, size_t size, uint64_t from, RemoteKey key,                       \
     const RequestParam* param))                                                                   \
  X(request_check, ucp_request_check_status, Code, (void* request))                                \
  X(request_free, ucp_request_free, void, (void* request))                                         \
  X(status_string, ucs_status_string, const char*, (Code code))                                    \
  X(disable_signals, ucs_debug_disable_signals, void, ())

}  // namespace oh::ucx
