/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoint: this process's end on one device. An endpoint owns its peers, regions and requests.
 *
 * Threading: all functions may be called from any thread. Call oh_endpoint_destroy once, last.
 * Ownership: a handle belongs to the caller until it calls the release function named beside it.
 * Objects of a closed or destroyed endpoint return OH_ERR_CLOSED and must still be released. In a
 * child of fork(), objects of the parent return OH_ERR_FORKED, and releasing them does nothing.
 */
#ifndef ONEHOP_ENDPOINT_H_
#define ONEHOP_ENDPOINT_H_

#include "onehop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oh_endpoint_options {
  size_t struct_size;
  const char* device;      /* NULL or "host": host memory; else "cuda", "cuda:1", "GPU-<uuid>" */
  int32_t progress_thread; /* not 0: a thread makes progress while no thread waits */
  int32_t set_max_inline;  /* not 0: max_inline takes precedence over ONEHOP_MAX_INLINE */
  size_t max_inline;       /* bytes to carry inside a control message, 0 to 65536 */
} oh_endpoint_options;

/*
 * Creates an endpoint. `options` may be NULL. OH_ERR_CONFIG: an ONEHOP_* variable or an option is
 * invalid. OH_ERR_NO_CRYPTO: libcrypto was not found. OH_ERR_NOT_VIABLE: the process has no such
 * device.
 */
OH_API oh_status oh_endpoint_create(const oh_endpoint_options* options, oh_endpoint** endpoint);
/*
 * Closes the endpoint and all its links. Operations in flight are cancelled; blocked calls return.
 * New calls fail with OH_ERR_CLOSED from the start; a request is in progress until its operation
 * has ended. All have ended when the call returns, also to a second thread that closes the
 * endpoint. The handle stays valid; calls with it return OH_ERR_CLOSED.
 */
OH_API void oh_endpoint_close(oh_endpoint* endpoint);
/*
 * Closes the endpoint and frees the handle. Once all endpoints of the process are closed, and the
 * handles of their peers, regions, batches and requests are freed, no thread of onehop uses them:
 * the process may exit.
 */
OH_API void oh_endpoint_destroy(oh_endpoint* endpoint);

/* Writes the address by which peers connect. Every process that has it can connect: keep it secret.
 */
OH_API oh_status oh_endpoint_address(oh_endpoint* endpoint, void* address, size_t* size);
/* The CUDA ordinal of the endpoint's GPU (oh_device_info); -1: an endpoint for host memory. */
OH_API oh_status oh_endpoint_device(oh_endpoint* endpoint, int32_t* ordinal);
/*
 * Connects to the endpoint that has this address. OH_ERR_INVALID: not an address, truncated, or
 * altered. OH_ERR_VERSION: the wire versions do not match. OH_ERR_AUTH: authentication failed.
 * OH_ERR_UNREACHABLE: the address cannot be reached. OH_ERR_REFUSED: the other side refused.
 * OH_ERR_TIMEOUT: the deadline passed. Release the peer with oh_peer_release.
 */
OH_API oh_status oh_endpoint_connect(oh_endpoint* endpoint, const void* address, size_t size,
                                     int64_t timeout_ns, oh_peer** peer);
/* Waits for the next peer that connects to this endpoint. OH_ERR_TIMEOUT. */
OH_API oh_status oh_endpoint_accept(oh_endpoint* endpoint, int64_t timeout_ns, oh_peer** peer);

/* Makes progress on the operations that no thread waits for. Never blocks. */
OH_API oh_status oh_endpoint_progress(oh_endpoint* endpoint);
/*
 * Withdraws the device memory that peers have mapped for transfers without a region. A free of that
 * memory then takes effect at once; otherwise it takes up to 100 ms. Memory that is used again is
 * mapped again.
 */
OH_API oh_status oh_endpoint_trim(oh_endpoint* endpoint);

/* Pools of buffers, all of one size, for transfers to and from other hosts. */
typedef enum oh_pool {
  OH_POOL_PIPELINE = 0, /* host memory on its way to UCX (ONEHOP_PIPELINE_*) */
  OH_POOL_STAGING = 1   /* pinned memory that carries device memory (ONEHOP_STAGING_*) */
} oh_pool;
typedef struct oh_pool_stats {
  size_t struct_size;
  uint64_t buffer_size; /* bytes */
  uint64_t limit;       /* most buffers that the pool may allocate */
  uint64_t buffers;     /* allocated so far */
  uint64_t in_use;      /* now */
  uint64_t peak;        /* most in use at once */
  uint64_t shortages;   /* times that a link or a message had to wait for a buffer */
} oh_pool_stats;
/* All zero if the endpoint has no such pool (yet): no link over UCX, or no GPU. */
OH_API oh_status oh_endpoint_get_pool(oh_endpoint* endpoint, oh_pool pool, oh_pool_stats* stats);
/* Starts the progress thread, if it is not running. OH_ERR_NOT_VIABLE: ONEHOP_PROGRESS_THREAD=off.
 */
OH_API oh_status oh_endpoint_start_progress(oh_endpoint* endpoint);
/*
 * An event descriptor, readable once a request passed to oh_request_arm has ended. The endpoint
 * owns it. oh_endpoint_clear_event makes it unreadable again.
 */
OH_API oh_status oh_endpoint_event_fd(oh_endpoint* endpoint, int* fd);
OH_API oh_status oh_endpoint_clear_event(oh_endpoint* endpoint);

/* Receives the first matching message of any peer. `tag` may be OH_ANY_TAG. See oh_peer_recv. */
OH_API oh_status oh_endpoint_recv(oh_endpoint* endpoint, void* data, size_t capacity, uint64_t tag,
                                  const oh_transfer_options* options, oh_message* message);
OH_API oh_status oh_endpoint_irecv(oh_endpoint* endpoint, void* data, size_t capacity, uint64_t tag,
                                   const oh_transfer_options* options, oh_request** request);

/*
 * Takes the oldest notification that has arrived. `from` (may be NULL) gets its size and sender.
 * OH_AGAIN: none has arrived. OH_ERR_RANGE: it is longer than *size bytes; it stays.
 */
OH_API oh_status oh_endpoint_notification(oh_endpoint* endpoint, void* data, size_t* size,
                                          oh_message* from);

/*
 * Registers host memory or memory of the endpoint's device, so that peers may read and write it.
 * The memory must stay valid until the region is deregistered. Peers access a region within memory
 * of oh_shared_alloc by plain loads and stores. OH_ERR_FAULT: the memory is not mapped.
 */
OH_API oh_status oh_region_register(oh_endpoint* endpoint, void* data, size_t size,
                                    oh_region** region);
/*
 * The same, but peers may only read: their puts fail with OH_ERR_READ_ONLY. This guards against
 * mistakes, not against a hostile peer: one that can access the memory directly can write to it.
 */
OH_API oh_status oh_region_register_read_only(oh_endpoint* endpoint, const void* data, size_t size,
                                              oh_region** region);
/*
 * Deregisters. After success no peer accesses the memory, except by operations that a peer had
 * already enqueued in a stream (onehop/stream.h). OH_ERR_TIMEOUT: a peer is stopped during an
 * access; the region is gone for all other peers, but keep its memory. OH_ERR_CLOSED: the endpoint
 * is closed, and no peer accesses the memory.
 */
OH_API oh_status oh_region_deregister(oh_region* region, int64_t timeout_ns);
/*
 * Frees the handle. Deregisters first if necessary, with the default timeout. It cannot report a
 * peer that is stopped during an access: oh_region_deregister does.
 */
OH_API void oh_region_release(oh_region* region);
/* Writes the descriptor that a peer passes to oh_peer_attach. */
OH_API oh_status oh_region_descriptor(oh_region* region, void* descriptor, size_t* size);
OH_API void* oh_region_data(oh_region* region);
OH_API size_t oh_region_size(oh_region* region);

/*
 * Allocates zeroed memory that peers can map: every transfer from or to it is a single copy. A
 * GPU's engine that first copies from or to it registers all of it with CUDA.
 */
OH_API oh_status oh_shared_alloc(size_t size, void** data);
OH_API oh_status oh_shared_free(void* data);

/* One configuration variable. Strings live as long as the library. */
typedef struct oh_config_entry {
  size_t struct_size;
  const char* name;
  const char* type;
  const char* allowed;
  const char* standard;
  const char* meaning;
  int32_t hidden; /* not 0: the value is a secret */
} oh_config_entry;
/* Variable `index`. OH_ERR_RANGE: past the last one. */
OH_API oh_status oh_config_get(size_t index, oh_config_entry* entry);

/* One transport of this build: viable here, or why not. Strings live until the thread's next call
   of this function. */
typedef struct oh_transport_info {
  size_t struct_size;
  const char* name;
  int32_t viable;
  const char* why;
} oh_transport_info;
OH_API oh_status oh_transport_get(size_t index, oh_transport_info* info);

/* A GPU that this process sees. Strings live until the thread's next call of this function. */
typedef struct oh_device_info {
  size_t struct_size;
  int32_t ordinal; /* "cuda:N" */
  const char* name;
  const char* uuid; /* "GPU-..." */
  const char* pci;  /* "0000:17:00.0" */
  int32_t major;    /* compute capability */
  int32_t minor;
  int32_t numa_node; /* of the host; -1: unknown */
} oh_device_info;
/* Device `index`. OH_ERR_RANGE: past the last one. OH_ERR_NOT_VIABLE: no driver, or no device. */
OH_API oh_status oh_device_get(size_t index, oh_device_info* info);

/* The link from device `from` to device `to`, both given by index. */
typedef struct oh_device_link {
  size_t struct_size;
  oh_link link;
  uint32_t nvlinks;          /* number of NVLinks between them; 0: none, or unknown */
  uint64_t nvlink_bandwidth; /* bytes/s of each NVLink, one way; 0: unknown */
  int32_t peer_access;       /* not 0: `from` can access the memory of `to` */
  int32_t native_atomics;    /* not 0: also by atomic operations */
  const char* text;          /* in words; if the link is unknown, why */
} oh_device_link;
OH_API oh_status oh_device_get_link(size_t from, size_t to, oh_device_link* link);

/* A NUMA node of this host, with lists of CPUs ("0-15,64-79"). */
typedef struct oh_numa_node {
  size_t struct_size;
  int32_t node;
  const char* cpus;   /* all CPUs of the node */
  const char* usable; /* those that the calling thread may use */
} oh_numa_node;
/* Node `index`. OH_ERR_RANGE: past the last one; a host may have none. */
OH_API oh_status oh_numa_node_get(size_t index, oh_numa_node* node);

/* The version of the library ("0.1.0"). OH_VERSION of version.h is that of the headers. */
OH_API const char* oh_version(void);
/* The CUDA kernel image that the library contains. OH_ERR_NOT_VIABLE: built without kernels. */
OH_API oh_status oh_kernel_image(const void** data, size_t* size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_ENDPOINT_H_ */
