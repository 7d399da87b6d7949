/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peer: a connection to one remote endpoint; all transfers are made here. Request: one of them.
 *
 * The contract of the host domain: within one direction and tag, send k matches receive k. A
 * receive may take any tag. A message longer than its receive is an error there (OH_ERR_TRUNCATED),
 * and at the sender if the send has not ended; else see oh_peer_async_error. Zero bytes are a
 * message. A send has ended when its buffer may be used again, a receive when its bytes have
 * arrived, a put when its bytes are visible at the peer; a notification or a signal comes after
 * what was put before it.
 *
 * Every wait ends: with success, at its deadline, or with the loss of the peer. A deadline never
 * gives back a buffer that the peer may still touch: the status is OH_ERR_IN_DOUBT then, and
 * oh_request_buffer_released says when it is free.
 *
 * Threading: any number of threads may use one peer.
 */
#ifndef ONEHOP_PEER_H_
#define ONEHOP_PEER_H_

#include "onehop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `options` may be NULL everywhere. Blocking calls return when the operation has ended. */
OH_API oh_status oh_peer_send(oh_peer* peer, const void* data, size_t size, uint64_t tag,
                              const oh_transfer_options* options);
/* `tag` may be OH_ANY_TAG; `message` may be NULL. */
OH_API oh_status oh_peer_recv(oh_peer* peer, void* data, size_t capacity, uint64_t tag,
                              const oh_transfer_options* options, oh_message* message);
/*
 * The same, but at the deadline the operation goes on: OH_IN_PROGRESS, and its request to poll,
 * wait for or cancel. So a caller can look after other things (signals, say) during a blocking
 * call. `request` is NULL when the operation has ended and its buffer is free. OH_AGAIN: nothing
 * was sent, as with oh_peer_isend.
 */
OH_API oh_status oh_peer_send_for(oh_peer* peer, const void* data, size_t size, uint64_t tag,
                                  const oh_transfer_options* options, oh_request** request);
OH_API oh_status oh_peer_recv_for(oh_peer* peer, void* data, size_t capacity, uint64_t tag,
                                  const oh_transfer_options* options, oh_message* message,
                                  oh_request** request);
/*
 * The same without waiting. OH_AGAIN: 65,536 sends (ONEHOP_MAX_PENDING) wait for their receives
 * already; make progress and call again. The buffer belongs to the operation until it has ended.
 */
OH_API oh_status oh_peer_isend(oh_peer* peer, const void* data, size_t size, uint64_t tag,
                               const oh_transfer_options* options, oh_request** request);
OH_API oh_status oh_peer_irecv(oh_peer* peer, void* data, size_t capacity, uint64_t tag,
                               const oh_transfer_options* options, oh_request** request);

/* Whether it has ended: OH_IN_PROGRESS, or its status. Makes progress. */
OH_API oh_status oh_request_test(oh_request* request);
/* Waits until it has ended; at the deadline it is ended: OH_ERR_TIMEOUT or OH_ERR_IN_DOUBT. */
OH_API oh_status oh_request_wait(oh_request* request, int64_t timeout_ns);
/* Waits, but leaves it alone at the deadline: OH_IN_PROGRESS. */
OH_API oh_status oh_request_poll(oh_request* request, int64_t timeout_ns);
/* Ends it with OH_ERR_CANCELLED. OH_AGAIN: too late, it has ended or is under way and will end by
 * itself. */
OH_API oh_status oh_request_cancel(oh_request* request);
/* 1 when the operation has ended and its buffer is no longer accessed, else 0. */
OH_API int oh_request_buffer_released(oh_request* request);
/* What it tells once it has ended well. */
OH_API oh_status oh_request_message(oh_request* request, oh_message* message);
/* Announces its end on oh_endpoint_event_fd, with a progress thread behind it. */
OH_API oh_status oh_request_arm(oh_request* request);
/*
 * What the CUstream gets from now on waits until the request has ended; the host goes on. The
 * driver waits, no kernel does, and a progress thread ends the request. That thread calls the
 * driver: until the request has ended no thread of the process may make a call that holds the
 * driver's lock while it waits for the device, or neither ends. The first launch of a kernel is one
 * (set CUDA_MODULE_LOADING=EAGER, or launch it before), so are cudaFree, cudaHostUnregister, and
 * loading and unloading modules. Waiting for a stream or an event is none. NULL is the legacy
 * default stream. Any number of streams may wait for one request, which may be released meanwhile.
 * The stream goes on however the request ends: with an error what it received into is undefined,
 * and only oh_request_test, oh_request_poll and oh_request_wait tell. A stream has no deadline: it
 * waits until the other side acts, its peer is lost, or some thread ends the request
 * (oh_request_wait, oh_request_cancel, closing the endpoint). A request that has ended: nothing is
 * enqueued, OH_OK. OH_ERR_INVALID: the endpoint has no device, or the stream is being captured;
 * OH_ERR_NOT_VIABLE: progress threads are forbidden.
 */
OH_API oh_status oh_request_stream_wait(oh_request* request, void* stream);
/* Gives the handle back; an operation that has not ended goes on and keeps its buffer. */
OH_API void oh_request_release(oh_request* request);

/* Attaches a region of this peer by its descriptor. */
OH_API oh_status oh_peer_attach(oh_peer* peer, const void* descriptor, size_t size,
                                int64_t timeout_ns, oh_remote_region** remote);
OH_API void oh_remote_region_detach(oh_remote_region* remote);
OH_API size_t oh_remote_region_size(oh_remote_region* remote);
/* Not 0: its owner has registered it read-only. */
OH_API int oh_remote_region_is_read_only(oh_remote_region* remote);
/* Not 0: host memory that is mapped here, so that atomic operations on it wait for no other
 * process. */
OH_API int oh_remote_region_is_mapped(oh_remote_region* remote);

/* A notification that follows a put or get, once its bytes are in place: at most 64 MiB. */
typedef struct oh_put_options {
  size_t struct_size;
  int64_t timeout_ns; /* of calls without a request */
  const void* notify; /* NULL: none */
  size_t notify_size;
  int32_t after; /* as in oh_transfer_options: for the local memory */
  void* after_handle;
  int32_t on_device;
  int32_t background; /* not 0: the call does not copy host memory itself; see oh_peer_put */
} oh_put_options;

/*
 * One-sided: `size` bytes from or to `data`, which need not be registered. With `request` NULL the
 * call blocks until the operation has ended. Where the peer's memory can be reached directly the
 * copy is made by the calling thread before the call returns, also with a request. In the
 * background it is made in slices instead, by threads that wait, test a request or make progress;
 * later puts and gets of host memory wait for their turn behind it. OH_ERR_RANGE; OH_ERR_RETIRED:
 * the peer has deregistered the region; OH_ERR_READ_ONLY: a put, and the peer has registered the
 * region read-only.
 */
OH_API oh_status oh_peer_put(oh_peer* peer, const void* data, oh_remote_region* remote,
                             size_t remote_offset, size_t size, const oh_put_options* options,
                             oh_request** request);
OH_API oh_status oh_peer_get(oh_peer* peer, void* data, oh_remote_region* remote,
                             size_t remote_offset, size_t size, const oh_put_options* options,
                             oh_request** request);

/*
 * Atomic operations on the 8 bytes at `remote_offset` of a region; the address there is a multiple
 * of 8. `before` gets what was there. Of the same thread's puts, those that have ended come before.
 * On host memory they are atomic towards each other, whichever peers they are of, and towards
 * atomic operations of the owner's threads (seq_cst). Unlike a put, one on memory that is not
 * mapped here (oh_remote_region_is_mapped) is carried out by a thread of the owner.
 * On memory of a GPU a kernel of the endpoint's GPU carries them out, for which the call waits:
 * atomic towards those of kernels and streams (oh_peer_stream_fetch_add, whose conditions hold).
 * compare_swap writes `value` where `expected` is found. OH_ERR_TIMEOUT, OH_ERR_PEER_LOST: it may
 * have been carried out, or be so yet. OH_ERR_NOT_VIABLE: memory of a GPU, and no kernel of ours
 * can. OH_ERR_INVALID, OH_ERR_RANGE, OH_ERR_RETIRED, OH_ERR_READ_ONLY: nothing was done.
 */
OH_API oh_status oh_peer_fetch_add(oh_peer* peer, oh_remote_region* remote, size_t remote_offset,
                                   uint64_t value, int64_t timeout_ns, uint64_t* before);
OH_API oh_status oh_peer_compare_swap(oh_peer* peer, oh_remote_region* remote, size_t remote_offset,
                                      uint64_t expected, uint64_t value, int64_t timeout_ns,
                                      uint64_t* before);

/* Sends a notification without a put; the peer takes it with oh_endpoint_notification. */
OH_API oh_status oh_peer_notify(oh_peer* peer, const void* data, size_t size,
                                const oh_transfer_options* options);
/* Adds `count` to the peer's slot for us, behind everything put before. */
OH_API oh_status oh_peer_signal(oh_peer* peer, uint32_t slot, uint64_t count);
/* Waits until the peer has signalled `count` more on our slot, and takes them. */
OH_API oh_status oh_peer_wait_signal(oh_peer* peer, uint32_t slot, uint64_t count,
                                     int64_t timeout_ns);

/* What is known of the link. */
typedef struct oh_peer_info {
  size_t struct_size;
  uint64_t id;       /* of this peer, unique in the process */
  const char* label; /* "host:pid" of the other process; lives as long as the peer's handle */
  int64_t rank;      /* in the communicator, or -1 */
  oh_path path;      /* of everything that is not inline */
  size_t max_inline; /* granted */
  size_t eager_max;
  size_t eager_credit;     /* what the peer grants us */
  int32_t single_copy;     /* we reach the peer's memory */
  int32_t target_progress; /* our puts and gets need the peer's progress */
  int64_t unresponsive_ns; /* since it stopped answering, or 0; asks, so ask twice */
} oh_peer_info;
OH_API oh_status oh_peer_get_info(oh_peer* peer, oh_peer_info* info);

/*
 * One row of the explanation which path is taken; strings live until the next call on this thread.
 * The rows of an operation between two kinds of memory cover each size once. oh_message.path is
 * what the row says, at both sides of a message, with these exceptions, which `why` names:
 *  - "worker": while the kernel does not run the next row of the same operation and kinds holds.
 *  - A small message takes credit until its receive has it; without credit the last row holds.
 *  - "pending message": a send whose memory waits for earlier work (oh_after) that is not done when
 *    its receive is posted behind it. Where there is no such row, "message" holds.
 *  - A message of host memory to a device takes the link's path while all transfer slots are used.
 * Batches, and batches as messages, are "put/get".
 */
typedef struct oh_path_row {
  size_t struct_size;
  const char* operation; /* "message", "pending message", "put/get" or "stream" */
  const char* source;    /* memory kinds: "host", "shared", "device", "device-private" */
  const char* target;
  uint64_t first; /* sizes */
  uint64_t last;
  oh_path path;
  const char* method; /* "inline", "eager", "direct", "stream", "none" */
  const char* why;
} oh_path_row;
/* OH_ERR_RANGE behind the last one. */
OH_API oh_status oh_peer_get_path(oh_peer* peer, size_t index, oh_path_row* row);

/*
 * Operations that ended well, each at the side that posted it: puts and sends are sent, gets and
 * receives are received; a batch is one operation.
 *
 * What calls have given to streams counts as "nvlink": a send with its size, or where that is on
 * the device with the most it may be; a receive with its capacity; a put as the copy engine's.
 * Captured calls, replays of graphs, and kernels of the caller's are not seen there: the last two
 * fields have theirs, too.
 */
typedef struct oh_peer_stats {
  size_t struct_size;
  uint64_t sent_operations[OH_PATH_COUNT];
  uint64_t sent_bytes[OH_PATH_COUNT];
  uint64_t received_operations[OH_PATH_COUNT];
  uint64_t received_bytes[OH_PATH_COUNT];
  uint64_t unexpected;    /* messages that came before their receive */
  uint64_t out_of_credit; /* small messages that had to ask first */
  uint64_t rtrs_used;     /* sends that went straight into a posted receive */
  uint64_t back_pressure; /* sends refused with OH_AGAIN */
  uint64_t timeouts;
  uint64_t cancelled;
  /* Messages of streams and kernels too long for the ring: straight into their receive; or through
   * chunks, slower, for the peer's memory was not mapped here (yet). */
  uint64_t stream_put;
  uint64_t stream_staged;
  uint64_t packed;   /* blocks and the like that UCX got in buffers for several, also those alone */
  uint64_t deferred; /* times that something waited for room: for a buffer, or in UCX */
} oh_peer_stats;
OH_API oh_status oh_peer_get_stats(oh_peer* peer, oh_peer_stats* stats);

/* The last 1,024 operations that ended on this link, as text, a line each; ends with a zero byte.
 */
OH_API oh_status oh_peer_flight_record(oh_peer* peer, char* text, size_t* size);

/* The last error of an operation of ours that had ended well here, and clears it; else OH_OK. */
OH_API oh_status oh_peer_async_error(oh_peer* peer);
/* Closes the link; operations that have not ended are cancelled. */
OH_API oh_status oh_peer_close(oh_peer* peer);
/* Gives the handle back; the link stays open until it or the endpoint is closed. The memory and the
 * descriptors of a lost link are freed with its last handle, or by the next connect or accept, once
 * no message of it waits for a receive. */
OH_API void oh_peer_release(oh_peer* peer);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_PEER_H_ */
