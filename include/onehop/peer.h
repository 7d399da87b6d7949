/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peer: a connection to one remote endpoint. Every transfer is a function of a peer. Request: one
 * operation in flight.
 *
 * Matching: within one direction and tag, send k matches receive k. A receive may take any tag.
 * Zero bytes are a message. A message longer than its receive fails there with OH_ERR_TRUNCATED.
 * Its send fails too if it has not ended; otherwise oh_peer_async_error reports it.
 *
 * Completion: a send has ended when its buffer may be reused, a receive when its bytes have
 * arrived, a put when its bytes are visible at the peer. A notification or a signal arrives after
 * the puts before it.
 *
 * Every wait ends: with success, at its deadline, or with the loss of the peer. A deadline never
 * returns a buffer that the peer may still access: the status is then OH_ERR_IN_DOUBT, and
 * oh_request_buffer_released reports when the buffer is free.
 *
 * Threading: any number of threads may use one peer.
 */
#ifndef ONEHOP_PEER_H_
#define ONEHOP_PEER_H_

#include "onehop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Blocking send: returns when the operation has ended. `size` is in bytes. In all functions here
 * `options` may be NULL.
 */
OH_API oh_status oh_peer_send(oh_peer* peer, const void* data, size_t size, uint64_t tag,
                              const oh_transfer_options* options);
/* Blocking receive. `tag` may be OH_ANY_TAG; `message` may be NULL. */
OH_API oh_status oh_peer_recv(oh_peer* peer, void* data, size_t capacity, uint64_t tag,
                              const oh_transfer_options* options, oh_message* message);
/*
 * Blocking calls that leave the operation in flight at the deadline: they return OH_IN_PROGRESS and
 * a request to poll, wait for or cancel. The caller can handle other events (signals, say) and
 * continue to wait. *request is NULL if the operation has ended and its buffer is free. OH_AGAIN:
 * nothing was sent, as for oh_peer_isend.
 */
OH_API oh_status oh_peer_send_for(oh_peer* peer, const void* data, size_t size, uint64_t tag,
                                  const oh_transfer_options* options, oh_request** request);
OH_API oh_status oh_peer_recv_for(oh_peer* peer, void* data, size_t capacity, uint64_t tag,
                                  const oh_transfer_options* options, oh_message* message,
                                  oh_request** request);
/*
 * Nonblocking send and receive. The operation owns the buffer until it has ended. OH_AGAIN:
 * ONEHOP_MAX_PENDING sends (65,536 by default) already wait for their receives; make progress and
 * call again.
 */
OH_API oh_status oh_peer_isend(oh_peer* peer, const void* data, size_t size, uint64_t tag,
                               const oh_transfer_options* options, oh_request** request);
OH_API oh_status oh_peer_irecv(oh_peer* peer, void* data, size_t capacity, uint64_t tag,
                               const oh_transfer_options* options, oh_request** request);

/* Makes progress. Returns the operation's status if it has ended, else OH_IN_PROGRESS. */
OH_API oh_status oh_request_test(oh_request* request);
/* Waits until it has ended. The deadline ends it: OH_ERR_TIMEOUT or OH_ERR_IN_DOUBT. */
OH_API oh_status oh_request_wait(oh_request* request, int64_t timeout_ns);
/* Waits until it has ended. At the deadline it stays in flight: OH_IN_PROGRESS. */
OH_API oh_status oh_request_poll(oh_request* request, int64_t timeout_ns);
/* Ends it with OH_ERR_CANCELLED. OH_AGAIN: too late; it has ended, or it will end by itself. */
OH_API oh_status oh_request_cancel(oh_request* request);
/* 1 if the operation has ended and nothing accesses its buffer any more, else 0. */
OH_API int oh_request_buffer_released(oh_request* request);
/* The result of an operation that has succeeded. OH_IN_PROGRESS: it has not ended. */
OH_API oh_status oh_request_message(oh_request* request, oh_message* message);
/* Announces its end on oh_endpoint_event_fd, and starts the progress thread. OH_ERR_NOT_VIABLE:
 * ONEHOP_PROGRESS_THREAD=off. */
OH_API oh_status oh_request_arm(oh_request* request);
/*
 * Makes a CUstream wait for the request: work enqueued from now on runs after the request has
 * ended. The host does not wait. NULL is the legacy default stream. Any number of streams may wait
 * for one request, and the request may be released meanwhile. If it has ended, the call enqueues
 * nothing and returns OH_OK. OH_ERR_INVALID: the endpoint has no device, or the stream is being
 * captured. OH_ERR_NOT_VIABLE: ONEHOP_PROGRESS_THREAD=off.
 *
 * The driver waits, not a kernel; a progress thread ends the request and calls the driver. Deadlock
 * hazard: until the request has ended, no thread of the process may make a call that holds the
 * driver's lock while it waits for the device. Such calls are the first launch of a kernel (set
 * CUDA_MODULE_LOADING=EAGER, or launch it before), cudaFree, cudaHostUnregister, and loading and
 * unloading modules; waiting for a stream or an event is not one.
 * The stream continues however the request ends. After an error the receive buffer is undefined,
 * and only oh_request_test, _poll and _wait report it. A stream has no deadline: it waits until the
 * peer acts or is lost, or a thread ends the request (oh_request_wait or _cancel, or a close).
 */
OH_API oh_status oh_request_stream_wait(oh_request* request, void* stream);
/* Releases the handle. An operation in flight continues and keeps its buffer. */
OH_API void oh_request_release(oh_request* request);

/* Attaches a region of this peer by its descriptor. Detach it with oh_remote_region_detach. */
OH_API oh_status oh_peer_attach(oh_peer* peer, const void* descriptor, size_t size,
                                int64_t timeout_ns, oh_remote_region** remote);
OH_API void oh_remote_region_detach(oh_remote_region* remote);
OH_API size_t oh_remote_region_size(oh_remote_region* remote);
/* Not 0: the owner registered it read-only. */
OH_API int oh_remote_region_is_read_only(oh_remote_region* remote);
/* Not 0: host memory that is mapped here, so that atomic operations on it wait for no other
 * process. */
OH_API int oh_remote_region_is_mapped(oh_remote_region* remote);

/* Options of puts and gets. The notification, at most 64 MiB, follows the bytes. */
typedef struct oh_put_options {
  size_t struct_size;
  int64_t timeout_ns; /* of calls without a request */
  const void* notify; /* NULL: no notification */
  size_t notify_size;
  int32_t after; /* an oh_after, for the local memory */
  void* after_handle;
  int32_t on_device;
  int32_t background; /* not 0: the call does not copy host memory itself; see oh_peer_put */
} oh_put_options;

/*
 * One-sided: copies `size` bytes from or to `data`, which need not be registered. With `request`
 * NULL the call blocks until the operation has ended. If the process can access the peer's memory
 * directly, the calling thread copies before the call returns, also with a request. With
 * `background`, threads that wait, test a request or make progress copy in slices instead; later
 * puts and gets of host memory queue behind it. OH_ERR_RANGE: outside of the region.
 * OH_ERR_RETIRED: the peer has deregistered the region. OH_ERR_READ_ONLY: a put to a region that
 * the peer registered read-only.
 */
OH_API oh_status oh_peer_put(oh_peer* peer, const void* data, oh_remote_region* remote,
                             size_t remote_offset, size_t size, const oh_put_options* options,
                             oh_request** request);
OH_API oh_status oh_peer_get(oh_peer* peer, void* data, oh_remote_region* remote,
                             size_t remote_offset, size_t size, const oh_put_options* options,
                             oh_request** request);

/*
 * Atomic operations on the 8 bytes at `remote_offset` of a region, at an address that is a multiple
 * of 8. `before` gets the previous value. They come after the thread's puts that have ended.
 * compare_swap writes `value` if it finds `expected`.
 * On host memory they are atomic with those of all other peers and with atomic operations of the
 * owner's threads (seq_cst). If the memory is not mapped here (oh_remote_region_is_mapped), a
 * thread of the owner executes them, unlike a put.
 * On GPU memory a kernel of the endpoint's GPU executes them, and the call waits for it. They are
 * atomic with those of kernels and streams; the conditions of oh_peer_stream_fetch_add apply.
 * OH_ERR_TIMEOUT, OH_ERR_PEER_LOST: the operation may have been executed, or may still be.
 * OH_ERR_NOT_VIABLE: GPU memory that no local kernel can access atomically. OH_ERR_INVALID,
 * OH_ERR_RANGE, OH_ERR_RETIRED, OH_ERR_READ_ONLY: nothing was done.
 */
OH_API oh_status oh_peer_fetch_add(oh_peer* peer, oh_remote_region* remote, size_t remote_offset,
                                   uint64_t value, int64_t timeout_ns, uint64_t* before);
OH_API oh_status oh_peer_compare_swap(oh_peer* peer, oh_remote_region* remote, size_t remote_offset,
                                      uint64_t expected, uint64_t value, int64_t timeout_ns,
                                      uint64_t* before);

/* Sends a notification without a put. The peer takes it with oh_endpoint_notification. */
OH_API oh_status oh_peer_notify(oh_peer* peer, const void* data, size_t size,
                                const oh_transfer_options* options);
/* Adds `count` to the peer's signal slot for this side, after the puts before it. */
OH_API oh_status oh_peer_signal(oh_peer* peer, uint32_t slot, uint64_t count);
/* Waits until this side's slot for the peer has reached `count`, then subtracts `count`. */
OH_API oh_status oh_peer_wait_signal(oh_peer* peer, uint32_t slot, uint64_t count,
                                     int64_t timeout_ns);

/* Facts about the link. */
typedef struct oh_peer_info {
  size_t struct_size;
  uint64_t id;       /* of this peer; unique in the process */
  const char* label; /* "host:pid" of the other process; lives as long as the peer's handle */
  int64_t rank;      /* in the communicator, or -1 */
  oh_path path;      /* of transfers that are not inline */
  size_t max_inline; /* bytes granted by the transport */
  size_t eager_max;
  size_t eager_credit;     /* bytes that the peer grants this side */
  int32_t single_copy;     /* not 0: this process can access the peer's memory */
  int32_t target_progress; /* not 0: local puts and gets need the peer's progress */
  int64_t unresponsive_ns; /* age of an unanswered probe, or 0; the call probes, so call twice */
} oh_peer_info;
OH_API oh_status oh_peer_get_info(oh_peer* peer, oh_peer_info* info);

/*
 * One row of the path selection; strings live until the next call on this thread. The rows of an
 * operation between two kinds of memory cover each size once. oh_message.path is the row's path, at
 * both sides of a message, with these exceptions, which `why` names:
 *  - "worker": while the kernel does not run, the next row of the same operation and kinds applies.
 *  - A small message holds credit until its receive has it; without credit the last row applies.
 *  - "pending message": a send whose memory still waits for earlier work (oh_after) when its
 *    receive is posted. Without such a row, "message" applies.
 *  - A host-to-device message takes the link's path while all transfer slots are in use.
 * Batches, and batches as messages, are "put/get". "atomic" with the path "none": not viable.
 */
typedef struct oh_path_row {
  size_t struct_size;
  const char* operation; /* "message", "pending message", "put/get", "atomic" or "stream" */
  const char* source;    /* memory kinds: "host", "shared", "pinned", "device", "device-private" */
  const char* target;
  uint64_t first; /* sizes in bytes, both inclusive */
  uint64_t last;
  oh_path path;
  const char* method; /* "inline", "eager", "direct", "stream", "none" */
  const char* why;
} oh_path_row;
/* Row `index`. OH_ERR_RANGE: past the last row. */
OH_API oh_status oh_peer_get_path(oh_peer* peer, size_t index, oh_path_row* row);

/*
 * Counts of operations that succeeded, each at the side that posted it. Puts and sends count as
 * sent, gets and receives as received; a batch is one operation.
 *
 * Stream calls count as "nvlink": a send with its size (if that is read on the device, with its
 * maximum), a receive with its capacity. A stream put counts as the copy engine's. Captured calls,
 * graph replays and user kernels are not counted, except in stream_put and stream_staged.
 */
typedef struct oh_peer_stats {
  size_t struct_size;
  uint64_t sent_operations[OH_PATH_COUNT];
  uint64_t sent_bytes[OH_PATH_COUNT];
  uint64_t received_operations[OH_PATH_COUNT];
  uint64_t received_bytes[OH_PATH_COUNT];
  uint64_t unexpected;    /* messages that arrived before their receive was posted */
  uint64_t out_of_credit; /* small messages that used rendezvous for lack of credit */
  uint64_t rtrs_used;     /* sends that went straight into a posted receive */
  uint64_t back_pressure; /* sends refused with OH_AGAIN */
  uint64_t timeouts;
  uint64_t cancelled;
  /* Stream and kernel messages too long for the ring: put into the receive buffer, or sent in
   * chunks (slower) because the peer's memory was not mapped here yet. */
  uint64_t stream_put;
  uint64_t stream_staged;
  uint64_t packed;   /* frames sent to UCX in shared buffers, also those alone in a buffer */
  uint64_t deferred; /* waits for a free buffer, or for room in UCX */
} oh_peer_stats;
OH_API oh_status oh_peer_get_stats(oh_peer* peer, oh_peer_stats* stats);

/* The last 1,024 operations that ended on this link: text, one line each, zero-terminated. */
OH_API oh_status oh_peer_flight_record(oh_peer* peer, char* text, size_t* size);

/* Returns and clears the last error of an operation that had already succeeded at this side. OH_OK:
 * there is none. */
OH_API oh_status oh_peer_async_error(oh_peer* peer);
/* Closes the link. Operations in flight are cancelled. */
OH_API oh_status oh_peer_close(oh_peer* peer);
/* Releases the handle. The link stays open until it or the endpoint is closed. A lost link's memory
 * and descriptors are freed with its last handle, or by the next connect or accept, once none of
 * its messages waits for a receive. */
OH_API void oh_peer_release(oh_peer* peer);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_PEER_H_ */
