/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes of onehop: the one list from which C, C++ and Python derive theirs.
 *
 * Purpose: every call returns an oh_status. Zero is success. Positive values mean "not yet" and are
 * not errors. Negative values are errors. The scope of an error says what to rebuild before the
 * work can continue: nothing (only the operation failed), the link to the peer, or the endpoint.
 *
 * Threading: all functions here may be called from any thread. The last error text is kept per
 * thread and stays valid until the next failing call of that thread.
 */
#ifndef ONEHOP_STATUS_H_
#define ONEHOP_STATUS_H_

#if defined(_WIN32)
#error "onehop runs on Linux"
#endif

#if !defined(OH_API)
#define OH_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oh_scope {
  OH_SCOPE_NONE = 0,      /* success, or not yet */
  OH_SCOPE_OPERATION = 1, /* the operation failed; link and endpoint still work */
  OH_SCOPE_LINK = 2,      /* the link to this peer is lost; connect again: oh_endpoint_connect,
                             or oh_comm_reconnect */
  OH_SCOPE_ENDPOINT = 3   /* the endpoint is unusable; create another */
} oh_scope;

/* X(name, value, scope, text) */
#define OH_STATUS_LIST(X)                                                                      \
  X(OH_OK, 0, OH_SCOPE_NONE, "success")                                                        \
  X(OH_IN_PROGRESS, 1, OH_SCOPE_NONE, "the operation has not ended yet")                       \
  X(OH_AGAIN, 2, OH_SCOPE_NONE, "no room now: make progress and call again")                   \
  X(OH_ERR_INVALID, -1, OH_SCOPE_OPERATION, "invalid argument")                                \
  X(OH_ERR_RANGE, -2, OH_SCOPE_OPERATION, "offset or length outside of the memory named")      \
  X(OH_ERR_TRUNCATED, -3, OH_SCOPE_OPERATION, "the message is longer than the posted receive") \
  X(OH_ERR_TIMEOUT, -4, OH_SCOPE_OPERATION, "the deadline passed")                             \
  X(OH_ERR_CANCELLED, -5, OH_SCOPE_OPERATION, "the operation was cancelled")                   \
  X(OH_ERR_IN_DOUBT, -6, OH_SCOPE_OPERATION,                                                   \
    "the operation ended, but the peer may still touch its buffer")                            \
  X(OH_ERR_NOT_VIABLE, -7, OH_SCOPE_OPERATION, "no viable path")                               \
  X(OH_ERR_FAULT, -8, OH_SCOPE_OPERATION, "memory cannot be read or written")                  \
  X(OH_ERR_RETIRED, -9, OH_SCOPE_OPERATION, "the remote region was deregistered")              \
  X(OH_ERR_NO_RESOURCE, -10, OH_SCOPE_OPERATION, "a resource is exhausted")                    \
  X(OH_ERR_READ_ONLY, -11, OH_SCOPE_OPERATION, "the remote region is read-only")               \
  X(OH_ERR_LINK, -20, OH_SCOPE_LINK, "the link failed")                                        \
  X(OH_ERR_PEER_LOST, -21, OH_SCOPE_LINK, "the peer is gone")                                  \
  X(OH_ERR_PROTOCOL, -22, OH_SCOPE_LINK, "the peer broke the protocol")                        \
  X(OH_ERR_AUTH, -23, OH_SCOPE_LINK, "authentication failed")                                  \
  X(OH_ERR_VERSION, -24, OH_SCOPE_LINK, "wire versions do not fit")                            \
  X(OH_ERR_UNREACHABLE, -25, OH_SCOPE_LINK, "the address cannot be reached")                   \
  X(OH_ERR_REFUSED, -26, OH_SCOPE_LINK, "the other side refused")                              \
  X(OH_ERR_CLOSED, -40, OH_SCOPE_ENDPOINT, "the object is closed")                             \
  X(OH_ERR_FORKED, -41, OH_SCOPE_ENDPOINT, "the object belongs to the process before fork()")  \
  X(OH_ERR_SYSTEM, -42, OH_SCOPE_ENDPOINT, "an operating system call failed")                  \
  X(OH_ERR_CONFIG, -43, OH_SCOPE_ENDPOINT, "a configuration value is wrong")                   \
  X(OH_ERR_NO_CRYPTO, -44, OH_SCOPE_ENDPOINT,                                                  \
    "libcrypto is missing, links cannot be authenticated")                                     \
  X(OH_ERR_DEVICE, -45, OH_SCOPE_ENDPOINT, "the GPU's context has failed")

typedef enum oh_status {
#define OH_STATUS_ENUM(name, value, scope, text) name = value,
  OH_STATUS_LIST(OH_STATUS_ENUM)
#undef OH_STATUS_ENUM
} oh_status;

/* The name of a code ("OH_ERR_TIMEOUT"), or "OH_UNKNOWN". Never NULL. */
OH_API const char* oh_status_name(oh_status status);
/* One line of text for a code. Never NULL. */
OH_API const char* oh_status_text(oh_status status);
/* What to rebuild after this status. */
OH_API oh_scope oh_status_scope(oh_status status);
/* The calling thread's last error: what was tried, with which values, and what to do. Never NULL.
 */
OH_API const char* oh_error_text(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_STATUS_H_ */
