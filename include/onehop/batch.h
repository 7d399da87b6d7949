/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: many blocks moved by one call.
 *
 * The arrays of a batch are read during the call and belong to the caller again afterwards; the
 * memory that they describe belongs to the operation until it has ended. A batch that is refused
 * has moved nothing.
 *
 * Threading: any number of threads may use one peer.
 */
#ifndef ONEHOP_BATCH_H_
#define ONEHOP_BATCH_H_

#include "onehop/peer.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Many blocks at once: block i is lengths[i] bytes at local + local_offsets[i] and
 * remote_offsets[i]. Strided: arrays NULL, then block i is `length` bytes at i * local_stride and i
 * * remote_stride behind local_base and remote_base. `local_size` bounds the local side.
 * OH_ERR_RANGE names the block that is outside; nothing has moved then. Where targets overlap,
 * which block is last is not defined. Between GPUs a kernel may copy, which waits for room on the
 * GPU beside other kernels (ONEHOP_BATCH_KERNEL).
 */
typedef struct oh_batch {
  size_t struct_size;
  void* local;
  size_t local_size;
  size_t count;
  const uint64_t* local_offsets;
  const uint64_t* remote_offsets;
  const uint64_t* lengths;
  uint64_t local_base;
  uint64_t remote_base;
  uint64_t local_stride;
  uint64_t remote_stride;
  uint64_t length;
} oh_batch;
OH_API oh_status oh_peer_put_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                   const oh_put_options* options, oh_request** request);
OH_API oh_status oh_peer_get_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                   const oh_put_options* options, oh_request** request);

/* Tags of batches that are sent and received are 0 to OH_BATCH_TAG_MAX. */
#define OH_BATCH_TAG_MAX ((uint64_t)INT64_MAX / 2)

/*
 * The blocks of one side: block i is lengths[i] bytes at memory + offsets[i]. Strided: arrays NULL,
 * then block i is `length` bytes at i * stride behind base. `memory_size` bounds them.
 */
typedef struct oh_blocks {
  size_t struct_size;
  void* memory;
  size_t memory_size;
  size_t count;
  const uint64_t* offsets;
  const uint64_t* lengths;
  uint64_t base;
  uint64_t stride;
  uint64_t length;
} oh_blocks;

/*
 * A batch as a message: its bytes are gathered from the blocks of the sender and scattered into
 * those of the receiver, in order and straight from memory to memory where the sender reaches that
 * of the receiver. Only the sums of the lengths count: the two lists may be cut differently. A
 * shorter batch fills the first bytes of the receive; a longer one is OH_ERR_TRUNCATED on both
 * sides. No blocks, or no bytes, are a message.
 *
 * Within one direction and tag, batch k matches the k-th receive of a batch that was not given up;
 * messages of oh_peer_send never match them. OH_ANY_TAG is no tag here.
 *
 * oh_peer_send_batch waits for its receive; at the deadline OH_ERR_TIMEOUT: nothing was sent. Once
 * it has begun, ONEHOP_TIMEOUT is its limit, and OH_ERR_IN_DOUBT says that it was not kept. To
 * exchange batches, post the receive first. What fails on one side then, fails on both.
 */
OH_API oh_status oh_peer_send_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                                    const oh_transfer_options* options);
/*
 * Into 4,194,304 blocks at most. Earlier work on the memory (`after`) is waited for by the call,
 * also by the second one. OH_AGAIN as with oh_peer_isend. OH_ERR_RANGE as for oh_batch.
 */
OH_API oh_status oh_peer_recv_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                                    const oh_transfer_options* options, oh_message* message);
OH_API oh_status oh_peer_irecv_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                                     const oh_transfer_options* options, oh_request** request);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_BATCH_H_ */
