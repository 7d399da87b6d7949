/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: many blocks moved by one call, or prepared once and posted again and again.
 *
 * The arrays of a batch are read during the call and are the caller's again afterwards; the memory
 * that they describe belongs to each operation until it has ended. A batch that is refused has
 * moved nothing. A batch of no blocks ends well at once.
 *
 * Threading: any number of threads may use one peer, and post one prepared batch.
 */
#ifndef ONEHOP_BATCH_H_
#define ONEHOP_BATCH_H_

#include "onehop/peer.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Block i is lengths[i] bytes at local + local_offsets[i] and remote_offsets[i]. Strided: arrays
 * NULL, then block i is `length` bytes at i * local_stride and i * remote_stride behind local_base
 * and remote_base. Packed: the local blocks lie back to back from local_base, and local_offsets and
 * local_stride are not looked at. `local_size` bounds the local side. At most 1,048,576 blocks.
 *
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
  int32_t packed;
} oh_batch;

/* Many blocks at once; options, request and errors as of oh_peer_put and oh_peer_get. */
OH_API oh_status oh_peer_put_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                   const oh_put_options* options, oh_request** request);
OH_API oh_status oh_peer_get_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                   const oh_put_options* options, oh_request** request);

/*
 * The same with `packed` set: contiguous local bytes to many remote blocks, and many remote blocks
 * into contiguous local memory.
 */
OH_API oh_status oh_peer_scatter(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                 const oh_put_options* options, oh_request** request);
OH_API oh_status oh_peer_gather(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                const oh_put_options* options, oh_request** request);

/*
 * Prepares a batch to be posted any number of times: its blocks are checked, neighbours joined and
 * a kernel's work divided once. Where a kernel copies, a post then takes the host the same time
 * however many blocks there are; elsewhere it saves the checks. What is prepared stays valid when
 * `remote` is detached.
 */
OH_API oh_status oh_peer_prepare_put(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                     oh_prepared_batch** prepared);
OH_API oh_status oh_peer_prepare_get(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                     oh_prepared_batch** prepared);
/*
 * Moves the blocks once, as oh_peer_put_batch and oh_peer_get_batch do; the bytes are those that
 * the memory holds then. OH_ERR_RETIRED: the peer has deregistered the region, for good.
 */
OH_API oh_status oh_prepared_batch_post(oh_prepared_batch* prepared, const oh_put_options* options,
                                        oh_request** request);
/* Gives the handle back, once. Posts that are under way end as they would have. */
OH_API void oh_prepared_batch_release(oh_prepared_batch* prepared);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_BATCH_H_ */
