/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for several requests, for notifications, and for messages of unknown size; streams that
 * wait in the place of the host; and requests that end when something can be taken, for event
 * loops and for oh_request_poll_any. What tells an event loop which of many requests have ended.
 *
 * Threading: any thread. Ownership: requests are released with oh_request_release.
 */
#ifndef ONEHOP_WAIT_H_
#define ONEHOP_WAIT_H_

#include "onehop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Waits until all requests have ended; those that have not at the deadline are ended as
 * oh_request_wait does. Returns the status of the first in the array that failed. The requests may
 * belong to different endpoints of this process.
 */
OH_API oh_status oh_request_wait_all(oh_request* const* requests, size_t count, int64_t timeout_ns);
/* The same, but leaves requests alone that have not ended at the deadline: OH_IN_PROGRESS. */
OH_API oh_status oh_request_poll_all(oh_request* const* requests, size_t count, int64_t timeout_ns);
/*
 * Waits until one of them has ended, well or not: the first in the array that has is *index. At
 * the deadline OH_IN_PROGRESS, and all are left alone.
 */
OH_API oh_status oh_request_poll_any(oh_request* const* requests, size_t count, int64_t timeout_ns,
                                     size_t* index);

/*
 * Lets a CUstream wait for a message in the place of the host: what the stream gets from now on
 * waits until the operation has ended. The host waits only until a copy engine has the copy, ours
 * or the peer's, with what the device writes behind it: from then on no thread of either process is
 * needed, so any call may follow, also one that holds the driver's lock until the device is idle,
 * as the first launch of a kernel does. What does not go by one copy of an engine (oh_message.path
 * other than "cuda_ipc", and "local" between devices) is waited for to its end, and so are puts and
 * gets, and all where progress threads are forbidden, or the peer is too old to tell. Until then
 * the timeout, and what is returned, are those of oh_request_wait.
 *
 * Once the stream waits: OH_OK; oh_request_test, oh_request_poll and oh_request_wait tell how the
 * operation ends, also badly. Then what was received into is undefined, and the stream goes on:
 * where the peer's engine copies, when the request ends (the peer is lost, oh_request_cancel or the
 * deadline of another wait ends it, the endpoint is closed); where ours does, when our engine is
 * through. So neither side closes its endpoint before its request has ended. The request may be
 * released before, and several streams may wait. NULL is the legacy default stream. OH_ERR_INVALID:
 * the endpoint has no device, or the stream is being captured.
 */
OH_API oh_status oh_request_wait_enqueued(oh_request* request, void* stream, int64_t timeout_ns);
/* The same, but leaves a request alone that is not so far at the deadline: OH_IN_PROGRESS. */
OH_API oh_status oh_request_poll_enqueued(oh_request* request, void* stream, int64_t timeout_ns);

/* Waits for the next notification and takes it: see oh_endpoint_notification. OH_ERR_TIMEOUT. */
OH_API oh_status oh_endpoint_wait_notification(oh_endpoint* endpoint, void* data, size_t* size,
                                               oh_message* from, int64_t timeout_ns);

/*
 * Waits for an unexpected message with this tag (may be OH_ANY_TAG), one without a posted receive,
 * and tells its size, tag and source; its path is known only once it is received. The message
 * stays: a receive with the tag that `message` names gets it, unless another thread is faster.
 * OH_ERR_TIMEOUT; OH_ERR_PEER_LOST.
 */
OH_API oh_status oh_peer_probe(oh_peer* peer, uint64_t tag, int64_t timeout_ns,
                               oh_message* message);
/* The same from any peer of the endpoint: message->peer_id and message->rank tell which. */
OH_API oh_status oh_endpoint_probe(oh_endpoint* endpoint, uint64_t tag, int64_t timeout_ns,
                                   oh_message* message);

/*
 * Requests that end as soon as something can be taken, without taking it: a connected peer for
 * oh_endpoint_accept, a notification, a message for a receive with this tag, `count` signals on
 * our slot for this peer. Take it afterwards; another thread may be faster, so be ready to ask
 * again. A peer that is lost ends them with OH_ERR_PEER_LOST.
 */
OH_API oh_status oh_endpoint_accept_ready(oh_endpoint* endpoint, oh_request** request);
OH_API oh_status oh_endpoint_notification_ready(oh_endpoint* endpoint, oh_request** request);
OH_API oh_status oh_peer_message_ready(oh_peer* peer, uint64_t tag, oh_request** request);
OH_API oh_status oh_peer_signal_ready(oh_peer* peer, uint32_t slot, uint64_t count,
                                      oh_request** request);

/*
 * For event loops that wait for many requests. A request that is given to oh_request_arm_listed is
 * listed once it has ended, until it is taken or released, with a progress thread behind it. The
 * descriptor of oh_endpoint_ended_fd becomes readable then; it belongs to the endpoint, and is
 * another than that of oh_endpoint_event_fd. oh_endpoint_take_ended makes it unreadable and takes
 * the requests of the list, oldest first: at most *count into `requests`; *count becomes their
 * number. One that is armed again may be listed again. In Python, asyncio takes the list.
 */
OH_API oh_status oh_request_arm_listed(oh_request* request);
OH_API oh_status oh_endpoint_ended_fd(oh_endpoint* endpoint, int* fd);
OH_API oh_status oh_endpoint_take_ended(oh_endpoint* endpoint, oh_request** requests,
                                        size_t* count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_WAIT_H_ */
