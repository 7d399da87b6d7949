/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle by which kernels use a lane of a peer: plain data, passed to a kernel by value or in
 * device memory. Its addresses are those of the GPU that it was made for.
 *
 * Threading: constant. Ownership: none; it is good while the peer's link is open.
 */
#ifndef ONEHOP_LANE_H_
#define ONEHOP_LANE_H_

#include "onehop/detail/integers.h"

/* Lanes are 0 to OH_LANES - 1. */
#define OH_LANES 16
#define OH_LANE_LAYOUT 2

/*
 * In `flags`, at both sides alike and from a lane's first message on: the sender polls its credit
 * in the receiver's memory. For comparison only.
 */
#define OH_LANE_SINGLE 1u

/*
 *   0    layout      32   mine             64   notice        96   signals
 *   4    lane        40   theirs           72   imports       104  their_signals
 *   8    flags       48   chunk_slots      80   timeout_ns    112  reserved
 *   12   ring_shift  52   chunk_shift      88   small_max     120  reserved
 *   16   lines_at    56   token
 *   24   chunks_at   60   follows
 */
typedef struct oh_lane_handle {
  uint32_t layout;        /* OH_LANE_LAYOUT */
  uint32_t lane;          /* 0 to OH_LANES - 1 */
  uint32_t flags;         /* OH_LANE_... */
  uint32_t ring_shift;    /* the ring has 2^ring_shift lines of 16 bytes */
  uint64_t lines_at;      /* where it begins, in the memory of either side */
  uint64_t chunks_at;     /* where the chunks of large messages begin */
  uint64_t mine;          /* our memory of the lane: detail/lane.h has what is in it */
  uint64_t theirs;        /* the peer's, as it is mapped here */
  uint32_t chunk_slots;   /* chunks that are under way at most */
  uint32_t chunk_shift;   /* a slot has 2^chunk_shift bytes, a chunk at most */
  uint32_t token;         /* of an operation that several blocks share; 0: none do */
  uint32_t follows;       /* the token before it in the same launch; 0: none */
  uint64_t notice;        /* what the lane and the host tell each other, in host memory */
  uint64_t imports;       /* the peer's memory that is mapped here; 0: none */
  uint64_t timeout_ns;    /* after which a wait ends */
  uint64_t small_max;     /* messages of more bytes are sent as large ones */
  uint64_t signals;       /* our counts: what the peer has signalled, and what was taken */
  uint64_t their_signals; /* the peer's, as they are mapped here */
  uint64_t reserved[2];
} oh_lane_handle;

#if defined(__cplusplus)
static_assert(sizeof(oh_lane_handle) == 128, "as it is documented");
#endif

/* Ranks of a communicator that a kernel may know. */
#define OH_DEVICE_RANKS 64

/*
 * A communicator as kernels use it: one lane of each of its ranks. 8,208 bytes, passed by value or
 * in device memory. That of the own rank is zero.
 */
typedef struct oh_comm_handle {
  uint32_t rank;
  uint32_t size;
  uint64_t reserved;
  oh_lane_handle ranks[OH_DEVICE_RANKS];
} oh_comm_handle;

/* A peer's region as kernels put into it. */
typedef struct oh_remote_memory {
  uint64_t base; /* as it is mapped on our GPU */
  uint64_t size; /* in bytes */
} oh_remote_memory;

/* Memory of ours into which the peer may put large messages that kernels receive. */
typedef struct oh_lane_target {
  uint64_t base;   /* where it begins */
  uint64_t size;   /* in bytes */
  uint64_t offset; /* of `base` in the peer's mapping */
  uint32_t region; /* the number of that; 0: none */
  uint32_t reserved;
} oh_lane_target;

/*
 * The result of an operation of a kernel. The first that fails a lane is kept for the host
 * (oh_peer_async_error); then every operation on that half of the lane fails until it is reset.
 */
typedef enum oh_lane_fault {
  OH_LANE_OK = 0,
  OH_LANE_TRUNCATED = 1, /* the message is longer than its receive; the lane goes on */
  OH_LANE_RANGE = 2,     /* outside of the memory named: at most the part inside is moved */
  OH_LANE_TIMEOUT = 3,   /* the deadline passed */
  OH_LANE_ABORTED = 4,   /* the host ended it: the peer is lost, or the lane is being reset */
  OH_LANE_OVERLAP = 5,   /* two operations at once on one half of a lane */
  OH_LANE_FAILED = 6,    /* it had failed before */
  OH_LANE_PROTOCOL = 7,  /* the peer broke the protocol: another version, or broken memory */
  OH_LANE_MISALIGNED = 8 /* an atomic operation at an address that is no multiple of 8 */
} oh_lane_fault;

#endif /* ONEHOP_LANE_H_ */
