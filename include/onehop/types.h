/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types shared by onehop's C headers.
 *
 * Conventions: objects are opaque and named oh_<object>; functions are oh_<object>_<verb>. Options
 * structs begin with struct_size = sizeof(the struct). A field that is zero takes its default.
 * Later versions only append fields. Outputs come last and are set on success only. Functions that
 * return bytes write them into the caller's buffer: *size is its capacity before the call and the
 * size needed after it; OH_ERR_RANGE: the buffer was too small. Sizes and offsets are bytes,
 * durations nanoseconds.
 */
#ifndef ONEHOP_TYPES_H_
#define ONEHOP_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#include "onehop/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oh_endpoint oh_endpoint;
typedef struct oh_peer oh_peer;
typedef struct oh_region oh_region;
typedef struct oh_remote_region oh_remote_region;
typedef struct oh_prepared_batch oh_prepared_batch;
typedef struct oh_request oh_request;
typedef struct oh_comm oh_comm;

/* Timeouts in nanoseconds. Zero: the default, ONEHOP_TIMEOUT. Negative values are invalid. */
#define OH_TIMEOUT_DEFAULT ((int64_t)0)
#define OH_TIMEOUT_NEVER INT64_MAX

/* Tags are 0 to OH_TAG_MAX. */
#define OH_TAG_MAX ((uint64_t)INT64_MAX)
#define OH_ANY_TAG UINT64_MAX

/* Signal slots are 0 to OH_SIGNAL_SLOTS - 1. */
#define OH_SIGNAL_SLOTS 64

/* The path that an operation took. */
#define OH_PATH_LIST(X)                                                   \
  X(OH_PATH_NONE, 0, "none")                                              \
  X(OH_PATH_LOCAL, 1, "local")       /* within the process */             \
  X(OH_PATH_INLINE, 2, "inline")     /* inside the control message */     \
  X(OH_PATH_SHM, 3, "shm")           /* shared memory of the host */      \
  X(OH_PATH_CUDA_IPC, 4, "cuda_ipc") /* copy engine into mapped memory */ \
  X(OH_PATH_WORKER, 5, "worker")     /* resident kernel */                \
  X(OH_PATH_STAGED, 6, "staged")     /* copy engine through a slab */     \
  X(OH_PATH_NVLINK, 7, "nvlink")     /* kernels over NVLink */            \
  X(OH_PATH_RELAY, 8, "relay")       /* pinned host memory */             \
  X(OH_PATH_PROXY, 9, "proxy")       /* progress thread for a stream */   \
  X(OH_PATH_UCX, 10, "ucx")          /* another host */                   \
  X(OH_PATH_SOCKET, 11, "socket")    /* the control socket */

typedef enum oh_path {
#define OH_PATH_ENUM(name, value, text) name = value,
  OH_PATH_LIST(OH_PATH_ENUM)
#undef OH_PATH_ENUM
} oh_path;
#define OH_PATH_COUNT 12

/* The name of a path ("shm"), or "unknown". Never NULL. */
OH_API const char* oh_path_name(oh_path path);

/* The connection between two GPUs. */
#define OH_LINK_LIST(X)                                                                 \
  X(OH_LINK_UNKNOWN, 0, "unknown")                                                      \
  X(OH_LINK_SAME, 1, "same")                                                            \
  X(OH_LINK_NVLINK, 2, "nvlink")                                                        \
  X(OH_LINK_PCIE_SWITCH, 3, "pcie_switch") /* below one PCIe switch, or on one board */ \
  X(OH_LINK_PCIE_BRIDGE, 4, "pcie_bridge") /* through one host bridge */                \
  X(OH_LINK_PCIE_NODE, 5, "pcie_node")     /* between host bridges of one NUMA node */  \
  X(OH_LINK_PCIE_SYSTEM, 6, "pcie_system") /* across NUMA nodes */

typedef enum oh_link {
#define OH_LINK_ENUM(name, value, text) name = value,
  OH_LINK_LIST(OH_LINK_ENUM)
#undef OH_LINK_ENUM
} oh_link;

/* The name of a kind of link ("nvlink"), or "unknown". Never NULL. */
OH_API const char* oh_link_name(oh_link link);

/* The result of a receive or of a finished request. */
typedef struct oh_message {
  size_t struct_size;
  size_t size;      /* bytes of the message */
  uint64_t tag;     /* tag it was sent with */
  uint64_t peer_id; /* id of the peer: see oh_peer_info */
  int64_t rank;     /* its rank in the communicator, or -1 */
  oh_path path;     /* the path it took */
  /* Requests of 128 KiB and more: nanoseconds from post to end. 0: not measured. */
  int64_t duration_ns;
} oh_message;

/*
 * Earlier GPU work that an operation waits for before it accesses its memory: work that still
 * writes the data to send, or still uses the receive buffer. By default none: the memory is ready.
 * The operation ends on the host, so work launched after a receive has ended sees its bytes.
 */
typedef enum oh_after {
  OH_AFTER_NOTHING = 0,
  OH_AFTER_STREAM = 1, /* all work now in the CUstream; it must not be capturing */
  OH_AFTER_EVENT = 2 /* the CUevent; it must not be recorded again until the operation has ended */
} oh_after;

/* Options of send, recv and the like. */
typedef struct oh_transfer_options {
  size_t struct_size;
  int64_t timeout_ns; /* of blocking calls */
  int32_t after;      /* an oh_after */
  void* after_handle; /* the CUstream (NULL: the legacy default stream) or CUevent */
  int32_t on_device;  /* not 0: the memory is device memory. If it has been freed, the call then
                         fails; it does not take the address for host memory */
} oh_transfer_options;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_TYPES_H_ */
