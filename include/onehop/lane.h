/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle by which kernels use a lane of a peer: plain data, passed to a kernel by value or in
 * device memory. Its addresses are valid on the GPU that it was made for.
 *
 * Threading: constant. Ownership: none; the handle is valid while the peer's link is open.
 */
#ifndef ONEHOP_LANE_H_
#define ONEHOP_LANE_H_

#include "onehop/detail/integers.h"

/* Lanes are 0 to OH_LANES - 1. */
#define OH_LANES 16
#define OH_LANE_LAYOUT 4

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
  uint32_t flags;         /* 0 */
  uint32_t ring_shift;    /* the ring has 2^ring_shift lines of 16 bytes */
  uint64_t lines_at;      /* offset of the ring, in the memory of either side */
  uint64_t chunks_at;     /* offset of the chunks of large messages */
  uint64_t mine;          /* this side's memory of the lane; layout: detail/lane.h */
  uint64_t theirs;        /* the peer's memory of the lane, as mapped here */
  uint32_t chunk_slots;   /* most chunks in flight */
  uint32_t chunk_shift;   /* a slot has 2^chunk_shift bytes, the largest chunk */
  uint32_t token;         /* of an operation that several blocks share; 0: not shared */
  uint32_t follows;       /* token that this operation follows in its launch; 0: none */
  uint64_t notice;        /* words shared by the lane and the host, in host memory */
  uint64_t imports;       /* table of the peer's memory that is mapped here; 0: none */
  uint64_t timeout_ns;    /* limit of each wait */
  uint64_t small_max;     /* bytes; longer messages are sent as large ones */
  uint64_t signals;       /* this side's counts: signalled by the peer, and taken */
  uint64_t their_signals; /* the peer's counts, as mapped here */
  uint64_t reserved[2];
} oh_lane_handle;

#if defined(__cplusplus)
static_assert(sizeof(oh_lane_handle) == 128, "as it is documented");
#endif

/* The most ranks in an oh_comm_handle. */
#define OH_DEVICE_RANKS 64

/*
 * A communicator for kernels: one lane of each of its ranks. 8,208 bytes, passed by value or in
 * device memory. The entry of the local rank is zero.
 */
typedef struct oh_comm_handle {
  uint32_t rank;
  uint32_t size;
  uint64_t reserved;
  oh_lane_handle ranks[OH_DEVICE_RANKS];
} oh_comm_handle;

/* A peer's region for puts by kernels. */
typedef struct oh_remote_memory {
  uint64_t base; /* as mapped on the local GPU */
  uint64_t size; /* in bytes */
} oh_remote_memory;

/* Local memory into which the peer may put large messages that kernels receive. */
typedef struct oh_lane_target {
  uint64_t base;   /* its address */
  uint64_t size;   /* in bytes */
  uint64_t offset; /* of `base` in the peer's mapping */
  uint32_t region; /* the number of that mapping; 0: none */
  uint32_t reserved;
} oh_lane_target;

/*
 * The result of an operation in a kernel. The first fault that fails a lane is kept for the host
 * (oh_peer_async_error). Every later operation on that half of the lane then fails until a reset.
 */
typedef enum oh_lane_fault {
  OH_LANE_OK = 0,
  OH_LANE_TRUNCATED = 1, /* the message is longer than its receive; the lane continues */
  OH_LANE_RANGE = 2,     /* outside of the given memory: at most the part inside is moved */
  OH_LANE_TIMEOUT = 3,   /* the deadline passed */
  OH_LANE_ABORTED = 4,   /* the host ended it: the peer is lost, or the lane is being reset */
  OH_LANE_OVERLAP = 5,   /* two operations at once on one half of a lane */
  OH_LANE_FAILED = 6,    /* the lane had failed before */
  OH_LANE_PROTOCOL = 7,  /* protocol error of the peer: another version, or corrupt memory */
  OH_LANE_MISALIGNED = 8 /* an atomic operation at an address that is not a multiple of 8 */
} oh_lane_fault;

#endif /* ONEHOP_LANE_H_ */
