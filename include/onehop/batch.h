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

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_BATCH_H_ */
