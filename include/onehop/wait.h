/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for several requests, for notifications, and for messages of unknown size. Streams that
 * wait instead of the host. For event loops and oh_request_poll_any: requests that end when
 * something can be taken, and the list of requests that have ended.
 *
 * Threading: any thread. Ownership: release requests with oh_request_release.
 */
#ifndef ONEHOP_WAIT_H_
#define ONEHOP_WAIT_H_

#include "onehop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Waits until all requests have ended. Those that have not at the deadline are ended as by
 * oh_request_wait. Returns the status of the first request in the array that failed, else OH_OK.
 * The requests may belong to different endpoints of this process.
 */
OH_API oh_status oh_request_wait_all(oh_request* const* requests, size_t count, int64_t timeout_ns);
/* The same, but at the deadline the other requests stay in flight: OH_IN_PROGRESS. */
OH_API oh_status oh_request_poll_all(oh_request* const* requests, size_t count, int64_t timeout_ns);
/*
 * Waits until one request has ended, with or without an error. *index is the first in the array
 * that has. At the deadline all stay in flight: OH_IN_PROGRESS. OH_ERR_INVALID: `count` is 0.
 */
OH_API oh_status oh_request_poll_any(oh_request* const* requests, size_t count, int64_t timeout_ns,
                                     size_t* index);

/*
 * Makes a CUstream wait for a message: work enqueued from now on runs after the operation has
 * ended. The host waits only until the copy (local or the peer's) and the device write behind it
 * are enqueued on a copy engine. From then on the operation needs no thread of either process. So
 * any call may follow, even one that holds the driver's lock until the device is idle, such as the
 * first launch of a kernel. `timeout_ns` and the errors until then are those of oh_request_wait.
 *
 * The host waits for the end of the operation instead if the operation is not one engine copy
 * (oh_message.path is neither "cuda_ipc", nor "local" between devices), if it is a put or a get, if
 * ONEHOP_PROGRESS_THREAD=off, or if the peer's version is too old to report the copy.
 *
 * OH_OK once the stream waits; oh_request_test, _poll and _wait then report how the operation ends.
 * If it fails, the receive buffer is undefined, and the stream continues: if the peer's engine
 * copies, when the request ends (the peer is lost; oh_request_cancel, the deadline of another wait
 * or a close of the endpoint ends it); if the local engine copies, when it has finished. So neither
 * side may close its endpoint before its request has ended. The request may be released before
 * that, and several streams may wait for it. NULL is the legacy default stream. OH_ERR_INVALID: the
 * endpoint has no device, or the stream is being captured.
 */
OH_API oh_status oh_request_wait_enqueued(oh_request* request, void* stream, int64_t timeout_ns);
/* The same, but at the deadline a request whose copy is not enqueued stays in flight:
 * OH_IN_PROGRESS. */
OH_API oh_status oh_request_poll_enqueued(oh_request* request, void* stream, int64_t timeout_ns);

/* Waits for the next notification and takes it, as oh_endpoint_notification. OH_ERR_TIMEOUT. */
OH_API oh_status oh_endpoint_wait_notification(oh_endpoint* endpoint, void* data, size_t* size,
                                               oh_message* from, int64_t timeout_ns);

/*
 * Waits for an unexpected message (one without a posted receive) with this tag, which may be
 * OH_ANY_TAG. `message` gets its size, tag and source; the path is known only after the receive.
 * The message is not taken: a receive with the tag in `message` gets it, unless another thread
 * receives it first. OH_ERR_TIMEOUT. OH_ERR_PEER_LOST.
 */
OH_API oh_status oh_peer_probe(oh_peer* peer, uint64_t tag, int64_t timeout_ns,
                               oh_message* message);
/* The same from any peer of the endpoint. message->peer_id and message->rank identify it. */
OH_API oh_status oh_endpoint_probe(oh_endpoint* endpoint, uint64_t tag, int64_t timeout_ns,
                                   oh_message* message);

/*
 * Requests that end once something can be taken, without taking it: a connected peer for
 * oh_endpoint_accept; a notification; a message for a receive with this tag; `count` signals in
 * this side's slot for the peer. Take it afterwards. Another thread may take it first: be ready to
 * wait again. The loss of the peer ends them with OH_ERR_PEER_LOST.
 */
OH_API oh_status oh_endpoint_accept_ready(oh_endpoint* endpoint, oh_request** request);
OH_API oh_status oh_endpoint_notification_ready(oh_endpoint* endpoint, oh_request** request);
OH_API oh_status oh_peer_message_ready(oh_peer* peer, uint64_t tag, oh_request** request);
OH_API oh_status oh_peer_signal_ready(oh_peer* peer, uint32_t slot, uint64_t count,
                                      oh_request** request);

/*
 * For event loops that wait for many requests. oh_request_arm_listed lists a request once it has
 * ended, until it is taken or released, and starts the progress thread. The descriptor of
 * oh_endpoint_ended_fd becomes readable then. The endpoint owns it; it is not the descriptor of
 * oh_endpoint_event_fd. oh_endpoint_take_ended makes it unreadable and takes the listed requests,
 * oldest first: at most *count into `requests`; *count becomes their number. A request that is
 * armed again may be listed again. In Python, asyncio takes the list.
 */
OH_API oh_status oh_request_arm_listed(oh_request* request);
OH_API oh_status oh_endpoint_ended_fd(oh_endpoint* endpoint, int* fd);
OH_API oh_status oh_endpoint_take_ended(oh_endpoint* endpoint, oh_request** requests,
                                        size_t* count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_WAIT_H_ */
