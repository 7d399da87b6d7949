/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: one call moves many blocks. A batch can also be prepared once and posted repeatedly, or
 * sent as one message.
 *
 * The call reads the arrays of a batch; afterwards they belong to the caller again. The memory that
 * they describe belongs to each operation until it has ended. A batch that is refused has moved
 * nothing. A batch of no blocks succeeds at once.
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
 * Blocks between one piece of local memory and one region. All values are bytes, except `count`.
 *  - Arrays: block i is lengths[i] bytes at local_offsets[i] of `local` and at remote_offsets[i].
 *  - Strided (arrays NULL): block i is `length` bytes, at local_base + i * local_stride and at
 *    remote_base + i * remote_stride.
 *  - Packed: the local blocks are contiguous from local_base; local_offsets and local_stride are
 *    ignored.
 * `local_size` bounds the local side. At most OH_BATCH_BLOCKS_MAX blocks.
 *
 * OH_ERR_RANGE: a block is out of bounds; the error text names it, and nothing has moved. If
 * destinations overlap, the order of the writes is undefined. Between GPUs a kernel may copy; it
 * waits until other kernels leave room on the GPU (ONEHOP_BATCH_KERNEL).
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

/* Moves the blocks. Options, request and errors as for oh_peer_put and oh_peer_get. */
OH_API oh_status oh_peer_put_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                   const oh_put_options* options, oh_request** request);
OH_API oh_status oh_peer_get_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                                   const oh_put_options* options, oh_request** request);

/*
 * The same with `packed` set: scatter moves contiguous local memory to many remote blocks, gather
 * moves many remote blocks to contiguous local memory.
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
 * Blocks between many pieces of local memory and many regions of one peer. Block i is lengths[i]
 * bytes, at local_offsets[i] of locals[local_index[i]] and at remote_offsets[i] of
 * remotes[remote_index[i]]. An index array that is NULL means all zeros. If `counts` is given,
 * entry i is a run of counts[i] such blocks, local_strides[i] and remote_strides[i] bytes apart. At
 * most OH_BATCH_BLOCKS_MAX blocks in all.
 *
 * All blocks are checked before any byte moves. OH_ERR_RANGE: the error text names the first block
 * that is out of bounds. A notification follows once all bytes of all regions are in place. One
 * launch copies all blocks between device memory.
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

/* Moves all blocks. Options, request and errors as for oh_peer_put and oh_peer_get. */
OH_API oh_status oh_peer_put_regions(oh_peer* peer, const oh_region_batch* batch,
                                     const oh_put_options* options, oh_request** request);
OH_API oh_status oh_peer_get_regions(oh_peer* peer, const oh_region_batch* batch,
                                     const oh_put_options* options, oh_request** request);

/*
 * Prepares a batch for any number of posts: checks its blocks, joins neighbours and divides a
 * kernel's work once. If a kernel copies, the host time of a post then does not depend on the
 * number of blocks; otherwise a post saves the checks. A prepared batch stays valid after its
 * regions are detached. Release it with oh_prepared_batch_release.
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
 * Moves the blocks once, as oh_peer_put_batch and oh_peer_get_batch do, with the bytes that the
 * memory holds at that time. OH_ERR_RETIRED: the peer has deregistered the region; further posts
 * fail too.
 */
OH_API oh_status oh_prepared_batch_post(oh_prepared_batch* prepared, const oh_put_options* options,
                                        oh_request** request);
/* Releases the handle, once. Posts in flight complete. */
OH_API void oh_prepared_batch_release(oh_prepared_batch* prepared);

/* The most blocks of a batch: 1,048,576. */
#define OH_BATCH_BLOCKS_MAX ((size_t)1 << 20)

/* Tags of batches as messages are 0 to OH_BATCH_TAG_MAX. */
#define OH_BATCH_TAG_MAX ((uint64_t)INT64_MAX / 2)

/*
 * The blocks of one side. Block i is lengths[i] bytes at memory + offsets[i]. Strided (arrays
 * NULL): block i is `length` bytes at memory + base + i * stride. `memory_size` bounds them.
 * OH_ERR_RANGE: the error text names the block that is out of bounds. At most OH_BATCH_BLOCKS_MAX.
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
 * A batch as a message: the bytes are gathered from the sender's blocks and scattered into the
 * receiver's, in order. They move straight from memory to memory if the sender can access the
 * receiver's memory. Only the total lengths have to match: the two sides may divide them into
 * different blocks. A shorter batch fills the first bytes of the receive. A longer one fails with
 * OH_ERR_TRUNCATED on both sides. No blocks, or no bytes, are a message too.
 *
 * Within one direction and tag, batch k matches the k-th batch receive that was not abandoned.
 * Batches never match messages of oh_peer_send. OH_ANY_TAG is not allowed.
 *
 * oh_peer_send_batch waits for its receive. OH_ERR_TIMEOUT at the deadline: nothing was sent. Once
 * the transfer has begun, ONEHOP_TIMEOUT limits it instead; OH_ERR_IN_DOUBT: that limit has passed.
 * To exchange batches, post the receive first. A failure on one side then fails both; but over a
 * socket, a receive whose deadline passes as the last byte arrives may fail alone.
 */
OH_API oh_status oh_peer_send_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                                    const oh_transfer_options* options);
/*
 * Both calls wait for earlier work on the memory (`after`), oh_peer_irecv_batch too. OH_AGAIN as
 * for oh_peer_isend.
 */
OH_API oh_status oh_peer_recv_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                                    const oh_transfer_options* options, oh_message* message);
OH_API oh_status oh_peer_irecv_batch(oh_peer* peer, const oh_blocks* blocks, uint64_t tag,
                                     const oh_transfer_options* options, oh_request** request);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_BATCH_H_ */
