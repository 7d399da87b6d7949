/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoint: this process's end on one device. It owns everything below it: peers, regions,
 * requests.
 *
 * Threading: all functions may be called from any thread, oh_endpoint_destroy once and last.
 * Ownership: what a function hands out belongs to the caller until it is given back by the function
 * named beside it. Objects of a destroyed endpoint answer OH_ERR_CLOSED and must still be given
 * back; those of the process before fork() answer OH_ERR_FORKED, and giving them back does nothing.
 */
#ifndef ONEHOP_ENDPOINT_H_
#define ONEHOP_ENDPOINT_H_

#include "onehop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oh_endpoint_options {
  size_t struct_size;
  const char* device;      /* NULL or "host": host memory; "cuda", "cuda:1", "GPU-<uuid>" */
  int32_t progress_thread; /* not 0: a thread makes progress while no thread waits */
  int32_t set_max_inline;  /* not 0: max_inline wins over ONEHOP_MAX_INLINE */
  size_t max_inline;       /* bytes asked for inside a control message, 0 to 65536 */
} oh_endpoint_options;

/*
 * Creates an endpoint; `options` may be NULL. OH_ERR_CONFIG: an ONEHOP_* variable or an option is
 * wrong; OH_ERR_NO_CRYPTO: no libcrypto; OH_ERR_NOT_VIABLE: no such device here.
 */
OH_API oh_status oh_endpoint_create(const oh_endpoint_options* options, oh_endpoint** endpoint);
/*
 * Closes the endpoint and all its links; operations that have not ended are cancelled, calls that
 * wait return. New calls fail with OH_ERR_CLOSED from the start; a request is in progress until its
 * operation has ended. When the call returns, also to a second thread that closes the endpoint, all
 * have. The handle stays, and answers OH_ERR_CLOSED.
 */
OH_API void oh_endpoint_close(oh_endpoint* endpoint);
/* Closes it and frees the handle. */
OH_API void oh_endpoint_destroy(oh_endpoint* endpoint);

/* What a peer needs to connect; any holder may connect, so pass it on with care. */
OH_API oh_status oh_endpoint_address(oh_endpoint* endpoint, void* address, size_t* size);
/*
 * Connects to the endpoint with this address. OH_ERR_INVALID: no address, cut off, or altered;
 * OH_ERR_VERSION; OH_ERR_AUTH; OH_ERR_UNREACHABLE; OH_ERR_REFUSED; OH_ERR_TIMEOUT. Release the peer
 * with oh_peer_release.
 */
OH_API oh_status oh_endpoint_connect(oh_endpoint* endpoint, const void* address, size_t size,
                                     int64_t timeout_ns, oh_peer** peer);
/* The next peer that has connected to this endpoint. */
OH_API oh_status oh_endpoint_accept(oh_endpoint* endpoint, int64_t timeout_ns, oh_peer** peer);

/* Makes progress on operations that no thread waits for. Never blocks. */
OH_API oh_status oh_endpoint_progress(oh_endpoint* endpoint);
/*
 * Takes back from all peers the device memory that they were shown and that no region stands for,
 * so that a free of it takes effect at once; without it that takes up to 100 ms after the free.
 * Memory that is used again is shown again.
 */
OH_API oh_status oh_endpoint_trim(oh_endpoint* endpoint);

/* Buffers of one size that transfers with other hosts take turns with. */
typedef enum oh_pool {
  OH_POOL_PIPELINE = 0, /* host memory on its way to UCX (ONEHOP_PIPELINE_*) */
  OH_POOL_STAGING = 1   /* device memory, on its way out and in (ONEHOP_STAGING_*) */
} oh_pool;
typedef struct oh_pool_stats {
  size_t struct_size;
  uint64_t buffer_size; /* bytes */
  uint64_t limit;       /* buffers that may be made */
  uint64_t buffers;     /* made so far */
  uint64_t in_use;      /* now */
  uint64_t peak;        /* most that were in use at once */
  uint64_t shortages;   /* times that a link or a message had to wait for one */
} oh_pool_stats;
/* All zero where the endpoint has no such pool (yet): without a link over UCX, or a GPU. */
OH_API oh_status oh_endpoint_get_pool(oh_endpoint* endpoint, oh_pool pool, oh_pool_stats* stats);
/* Starts the endpoint's progress thread, if it does not run. */
OH_API oh_status oh_endpoint_start_progress(oh_endpoint* endpoint);
/*
 * A descriptor that becomes readable when a request given to oh_request_arm has ended; it belongs
 * to the endpoint. oh_endpoint_clear_event makes it unreadable again.
 */
OH_API oh_status oh_endpoint_event_fd(oh_endpoint* endpoint, int* fd);
OH_API oh_status oh_endpoint_clear_event(oh_endpoint* endpoint);

/* Receives from whichever peer sends first. `tag` may be OH_ANY_TAG. See oh_peer_recv. */
OH_API oh_status oh_endpoint_recv(oh_endpoint* endpoint, void* data, size_t capacity, uint64_t tag,
                                  const oh_transfer_options* options, oh_message* message);
OH_API oh_status oh_endpoint_irecv(oh_endpoint* endpoint, void* data, size_t capacity, uint64_t tag,
                                   const oh_transfer_options* options, oh_request** request);

/*
 * The oldest notification that has come, into `data`; `from` (may be NULL) tells who sent it.
 * OH_AGAIN: there is none. OH_ERR_RANGE: it is longer than *size, and stays.
 */
OH_API oh_status oh_endpoint_notification(oh_endpoint* endpoint, void* data, size_t* size,
                                          oh_message* from);

/*
 * Registers host memory, so that peers may read and write it. It must stay until it is
 * deregistered. A region within memory of oh_shared_alloc is reached by plain memory access.
 * OH_ERR_FAULT: the memory is not mapped.
 */
OH_API oh_status oh_region_register(oh_endpoint* endpoint, void* data, size_t size,
                                    oh_region** region);
/*
 * The same, so that peers may only read it: puts fail with OH_ERR_READ_ONLY. This keeps programs
 * from mistakes; a hostile peer that reaches the memory by itself can write to it.
 */
OH_API oh_status oh_region_register_read_only(oh_endpoint* endpoint, const void* data, size_t size,
                                              oh_region** region);
/*
 * Ends the region: afterwards no peer touches its memory, but for what a peer had enqueued in a
 * stream before (onehop/stream.h). OH_ERR_TIMEOUT: a peer is stopped in the middle of it; the
 * region is gone for all other peers, but its memory must be kept. OH_ERR_CLOSED: the endpoint is
 * closed, and no peer is in it.
 */
OH_API oh_status oh_region_deregister(oh_region* region, int64_t timeout_ns);
/*
 * Frees the handle; deregisters, if that was not done, with the default timeout. Whether a peer is
 * stopped in the middle of the memory only oh_region_deregister tells.
 */
OH_API void oh_region_release(oh_region* region);
/* Bytes for oh_peer_attach at a peer. */
OH_API oh_status oh_region_descriptor(oh_region* region, void* descriptor, size_t* size);
OH_API void* oh_region_data(oh_region* region);
OH_API size_t oh_region_size(oh_region* region);

/* Memory that can be handed to peers: all transfers from and to it are one copy. Zeroed. */
OH_API oh_status oh_shared_alloc(size_t size, void** data);
OH_API oh_status oh_shared_free(void* data);

/* One variable of the configuration; strings live as long as the library. */
typedef struct oh_config_entry {
  size_t struct_size;
  const char* name;
  const char* type;
  const char* allowed;
  const char* standard;
  const char* meaning;
  int32_t hidden; /* its value is a secret */
} oh_config_entry;
/* OH_ERR_RANGE behind the last one. */
OH_API oh_status oh_config_get(size_t index, oh_config_entry* entry);

/* One transport of this build: viable here, or why not. Strings live as long as the thread calls
   nothing else of this kind. */
typedef struct oh_transport_info {
  size_t struct_size;
  const char* name;
  int32_t viable;
  const char* why;
} oh_transport_info;
OH_API oh_status oh_transport_get(size_t index, oh_transport_info* info);

/* A GPU that this process sees; strings as above. */
typedef struct oh_device_info {
  size_t struct_size;
  int32_t ordinal; /* "cuda:N" */
  const char* name;
  const char* uuid; /* "GPU-..." */
  const char* pci;  /* "0000:17:00.0" */
  int32_t major;    /* compute capability */
  int32_t minor;
  int32_t numa_node; /* of the host, -1: not known */
} oh_device_info;
/* OH_ERR_RANGE behind the last one; OH_ERR_NOT_VIABLE: there is no driver, or no device. */
OH_API oh_status oh_device_get(size_t index, oh_device_info* info);

/* How device `from` is joined to device `to`, both by their index. */
typedef struct oh_device_link {
  size_t struct_size;
  oh_link link;
  uint32_t nvlinks;          /* that join them; 0: none, or not known */
  uint64_t nvlink_bandwidth; /* bytes/s of each, one way; 0: not known */
  int32_t peer_access;       /* `from` may reach the memory of `to` */
  int32_t native_atomics;    /* also with atomic operations */
  const char* text;          /* in words; where the link is not known, why */
} oh_device_link;
OH_API oh_status oh_device_get_link(size_t from, size_t to, oh_device_link* link);

/* A NUMA node of this host, with lists of CPUs ("0-15,64-79"). */
typedef struct oh_numa_node {
  size_t struct_size;
  int32_t node;
  const char* cpus;   /* all of it */
  const char* usable; /* those of them that the calling thread may use */
} oh_numa_node;
/* OH_ERR_RANGE behind the last one; there may be none. */
OH_API oh_status oh_numa_node_get(size_t index, oh_numa_node* node);

/* The version of the library, "0.1.0"; that of these headers is OH_VERSION of version.h. */
OH_API const char* oh_version(void);
/* Checks the embedded kernels' image: OH_ERR_NOT_VIABLE when the build has none. */
OH_API oh_status oh_kernel_image(const void** data, size_t* size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_ENDPOINT_H_ */
