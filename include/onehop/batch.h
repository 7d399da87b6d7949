/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: many blocks moved by one call, prepared once and posted again and again, or sent as one
 * message.
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

/* A piece of local memory. */
typedef struct oh_memory {
  void* data;
  size_t size;
} oh_memory;

/*
 * A batch over many pieces of local memory and many regions of one peer. Block i is lengths[i]
 * bytes at local_offsets[i] in locals[local_index[i]] and at remote_offsets[i] in
 * remotes[remote_index[i]]; an index array that is NULL stands for zeros. With `counts`, entry i is
 * a run of counts[i] such blocks, local_strides[i] and remote_strides[i] bytes apart. At most
 * 1,048,576 blocks in all.
 *
 * All blocks are checked before any byte moves: OH_ERR_RANGE names the first that is outside. A
 * notification follows when all bytes of all regions are in place. Blocks between device memory are
 * copied by one launch.
 */
typedef struct oh_region_batch {
  size_t struct_size;
  const oh_memory* locals;
  size_t local_count;
  oh_remote_region* const* remotes;
  size_t remote_count;
  size_t count;
  const uint32_t* local_index;
  const uint32_t* remote_index;
  const uint64_t* local_offsets;
  const uint64_t* remote_offsets;
  const uint64_t* lengths;
  const uint64_t* counts;
  const uint64_t* local_strides;
  const uint64_t* remote_strides;
} oh_region_batch;

/* Moves all blocks; options, request and errors as of oh_peer_put and oh_peer_get. */
OH_API oh_status oh_peer_put_regions(oh_peer* peer, const oh_region_batch* batch,
                                     const oh_put_options* options, oh_request** request);
OH_API oh_status oh_peer_get_regions(oh_peer* peer, const oh_region_batch* batch,
                                     const oh_put_options* options, oh_request** request);

/*
 * Prepares a batch to be posted any number of times: its blocks are checked, neighbours joined and
 * a kernel's work divided once. Where a kernel copies, a post then takes the host the same time
 * however many blocks there are; elsewhere it saves the checks. What is prepared stays valid when
 * its regions are detached.
 */
OH_API oh_status oh_peer_prepare_put(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                     oh_prepared_batch** prepared);
OH_API oh_status oh_peer_prepare_get(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                     oh_prepared_batch** prepared);
OH_API oh_status oh_peer_prepare_put_regions(oh_peer* peer, const oh_region_batch* batch,
                                             oh_prepared_batch** prepared);
OH_API oh_status oh_peer_prepare_get_regions(oh_peer* peer, const oh_region_batch* batch,
                                             oh_prepared_batch** prepared);
/*
 * Moves the blocks once, as oh_peer_put_batch and oh_peer_get_batch do; the bytes are those that
 * the memory holds then. OH_ERR_RETIRED: the peer has deregistered the region, for good.
 */
OH_API oh_status oh_prepared_batch_post(oh_prepared_batch* prepared, const oh_put_options* options,
                                        oh_request** request);
/* Gives the handle back, once. Posts that are under way end as they would have. */
OH_API void oh_prepared_batch_release(oh_prepared_batch* prepared);

/* A batch has at most so many blocks. */
#define OH_BATCH_BLOCKS_MAX ((size_t)1 << 20)

/* Tags of batches that are sent and received are 0 to OH_BATCH_TAG_MAX. */
#define OH_BATCH_TAG_MAX ((uint64_t)INT64_MAX / 2)

/*
 * The blocks of one side: block i is lengths[i] bytes at memory + offsets[i]. Strided: arrays NULL,
 * then block i is `length` bytes at i * stride behind base. `memory_size` bounds them; OH_ERR_RANGE
 * names the block that is outside. At most 1,048,576 blocks.
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
 * exchange batches, post the receive first. What fails on one side then, fails on both; but over a
 * socket, a receive whose deadline passes as the last byte comes may fail alone.
 */
OH_API oh_status oh_peer_send_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                                    const oh_transfer_options* options);
/*
 * Earlier work on the memory (`after`) is waited for by the call, also by the second one. OH_AGAIN
 * as with oh_peer_isend.
 */
OH_API oh_status oh_peer_recv_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                                    const oh_transfer_options* options, oh_message* message);
OH_API oh_status oh_peer_irecv_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                                     const oh_transfer_options* options, oh_request** request);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_BATCH_H_ */
