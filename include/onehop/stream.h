/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream domain: operations in the order of a GPU's stream. Each call enqueues and returns; it
 * may be captured into a graph and replayed any number of times, with no per-replay bookkeeping.
 *
 * It never mixes with the host domain (oh_peer_send). Within a lane (0 to OH_LANES - 1), send k of
 * one side meets receive k of the other, in the order in which the streams run them. On one lane
 * the calls of a process follow each other, also from several streams; graphs that share a lane are
 * ordered by the caller, by edges or events: a call may take its lane while what comes before it in
 * its stream still waits. What one lane does waits for no other.
 *
 * A send is complete, in the stream's order, when its buffer may be written again, a receive when
 * its bytes have arrived. A send of at most `stream_buffered` bytes (oh_peer_get_stream_info) does
 * not wait for its receive; longer exchanges in both directions belong into one group.
 *
 * The memory must stay until the stream is through with it. Errors after a call has returned are
 * reported by oh_peer_async_error: OH_ERR_TRUNCATED, OH_ERR_RANGE or, of what a reset has
 * ended, OH_ERR_CANCELLED, and the lane goes on; OH_ERR_TIMEOUT, OH_ERR_PEER_LOST, OH_ERR_PROTOCOL
 * or OH_ERR_INVALID (two at once on a lane), and the lane takes no more until oh_peer_reset_lane. A
 * wait of a kernel ends at the timeout at the latest; by proxy each of the two that an operation
 * may have. Signals and puts fail no lane.
 *
 * Streams are CUstream (cudaStream_t) of the endpoint's device; NULL is the legacy default stream.
 *
 * Threading: any number of threads and streams may use one peer; a group belongs to its thread.
 */
#ifndef ONEHOP_STREAM_H_
#define ONEHOP_STREAM_H_

#include "onehop/batch.h"
#include "onehop/comm.h"
#include "onehop/lane.h"
#include "onehop/peer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oh_stream_options {
  size_t struct_size;
  int64_t timeout_ns; /* of the waits on the device, and of connecting where that is needed */
  uint32_t lane;
  /* Device memory, 8 bytes, or NULL: how much of `size` a send really sends, read when it runs; how
   * long the message was that a receive got, written. */
  const uint64_t* size_from;
  uint64_t* size_to;
} oh_stream_options;

/*
 * Connects the lanes, and makes ready what they need; without it the first call does. While a
 * stream is captured only peers that are ready can be used: OH_ERR_INVALID, and nothing is
 * recorded. Where kernels do not reach the peer's memory (another host, no peer access), or only
 * over a link without native atomics (PCIe), the host carries what streams say
 * (docs/transports/proxy.md). OH_ERR_NOT_VIABLE: nor does the host, and why.
 */
OH_API oh_status oh_peer_warmup(oh_peer* peer, int64_t timeout_ns);
/* All of them; connects where there is no link yet. */
OH_API oh_status oh_comm_warmup(oh_comm* comm, const int32_t* ranks, size_t count,
                                int64_t timeout_ns);

/* Device memory of the endpoint's GPU, of any size and alignment. `options` may be NULL. */
OH_API oh_status oh_peer_stream_send(oh_peer* peer, void* stream, const void* data, size_t size,
                                     const oh_stream_options* options);
OH_API oh_status oh_peer_stream_recv(oh_peer* peer, void* stream, void* data, size_t capacity,
                                     const oh_stream_options* options);

/*
 * Copies into the peer's region, by the copy engine where it is mapped here: that takes no part of
 * the GPU from others. Else by proxy, where the peer's streams go so, from device memory of the
 * endpoint's GPU, within the default timeout. The bytes are visible there behind a signal that
 * follows. OH_ERR_RANGE; OH_ERR_READ_ONLY; OH_ERR_RETIRED: the region is mapped here, and has been
 * deregistered; OH_ERR_NOT_VIABLE: neither is possible. Later errors of a put by proxy are told by
 * oh_peer_async_error, also OH_ERR_RETIRED.
 */
OH_API oh_status oh_peer_stream_put(oh_peer* peer, void* stream, const void* data,
                                    oh_remote_region* remote, size_t remote_offset, size_t size);
/* Likewise copies out of the peer's region: what was there when the stream comes to it, so behind
 * what the peer had written before a signal that the stream has waited for. Later work of the
 * stream finds the bytes in `data`. Regions that may only be read will do. */
OH_API oh_status oh_peer_stream_get(oh_peer* peer, void* stream, void* data,
                                    oh_remote_region* remote, size_t remote_offset, size_t size);
/*
 * Likewise many blocks (onehop/batch.h; scatter and gather: `packed`). Where the regions are mapped
 * here, kernels copy the blocks between memory of GPUs, 1,000 each, and wait for room on the GPU
 * beside other kernels (ONEHOP_BATCH_KERNEL); the copy engine copies what is longer than 2 MiB, and
 * blocks of host memory, which should be pinned: of pageable memory the driver may make the call
 * wait. The arrays are the caller's again at once, also those of a call that was captured.
 * OH_ERR_RANGE names the block that is outside, and OH_ERR_RETIRED says that the region is
 * deregistered; nothing is enqueued then. oh_region_deregister does not wait for what peers have
 * enqueued before. Where the driver fails, some of the blocks may be in the stream.
 */
OH_API oh_status oh_peer_stream_put_batch(oh_peer* peer, void* stream, oh_remote_region* remote,
                                          const oh_batch* batch);
OH_API oh_status oh_peer_stream_get_batch(oh_peer* peer, void* stream, oh_remote_region* remote,
                                          const oh_batch* batch);
OH_API oh_status oh_peer_stream_put_regions(oh_peer* peer, void* stream,
                                            const oh_region_batch* batch);
OH_API oh_status oh_peer_stream_get_regions(oh_peer* peer, void* stream,
                                            const oh_region_batch* batch);
/*
 * Atomic operations on the 8 bytes at `remote_offset`, whose address is a multiple of 8, behind all
 * that the stream did before. `before` is 8 aligned bytes of device memory that get what was there,
 * or NULL. compare_swap writes `value` where `expected` is found.
 * On memory of a GPU a kernel carries them out: atomic towards those of all kernels and streams
 * (system scope: onehop/device.cuh). OH_ERR_NOT_VIABLE: it is not mapped here, or the link has no
 * native atomics. On host memory the host does, where the peer's streams go by proxy, within the
 * default timeout: atomic as oh_peer_fetch_add is, and refused elsewhere (OH_ERR_NOT_VIABLE); later
 * errors are told by oh_peer_async_error, `before` is 0 then. OH_ERR_INVALID, OH_ERR_RANGE,
 * OH_ERR_READ_ONLY; OH_ERR_RETIRED as for a put.
 */
OH_API oh_status oh_peer_stream_fetch_add(oh_peer* peer, void* stream, oh_remote_region* remote,
                                          size_t remote_offset, uint64_t value, uint64_t* before);
OH_API oh_status oh_peer_stream_compare_swap(oh_peer* peer, void* stream, oh_remote_region* remote,
                                             size_t remote_offset, uint64_t expected,
                                             uint64_t value, uint64_t* before);
/* Adds to the peer's count for us, behind all that the stream did before. Not that of
 * oh_peer_signal. */
OH_API oh_status oh_peer_stream_signal(oh_peer* peer, void* stream, uint32_t slot, uint64_t count);
/* The stream waits until the peer has signalled `count` more, and takes them. */
OH_API oh_status oh_peer_stream_wait_signal(oh_peer* peer, void* stream, uint32_t slot,
                                            uint64_t count, const oh_stream_options* options);

/*
 * What the thread's stream calls between the two say is begun together at the end, each stream's in
 * one launch: sends and receives then wait for none of each other, but for those of one lane in one
 * direction, which follow each other. Groups may be nested; only the outermost end begins. At most
 * 128 operations a stream. Puts and gets are enqueued at once.
 */
OH_API oh_status oh_group_begin(void);
OH_API oh_status oh_group_end(void);

/* For kernels of the caller's own: onehop/device.cuh. Valid until the peer is closed.
 * OH_ERR_NOT_VIABLE: they do not reach the peer, or not over a link with native atomics; and why.
 */
OH_API oh_status oh_peer_device_handle(oh_peer* peer, uint32_t lane, oh_lane_handle* handle);
/* The same of all ranks, which it connects: at most OH_DEVICE_RANKS. */
OH_API oh_status oh_comm_device_handle(oh_comm* comm, uint32_t lane, oh_comm_handle* handle);
/*
 * For receives of such kernels: large messages go straight into this device memory instead of
 * through the lane's chunks, from when the peer has mapped it until it is freed. OH_ERR_NOT_VIABLE:
 * the peer cannot map it.
 */
OH_API oh_status oh_peer_lane_target(oh_peer* peer, void* data, size_t size,
                                     oh_lane_target* target);
/* A region of the peer's, as kernels put into it, so not a read-only one (OH_ERR_READ_ONLY). Valid
 * until it is detached. */
OH_API oh_status oh_remote_region_device(oh_remote_region* remote, oh_remote_memory* memory);

/*
 * Makes a lane that has failed usable again, at both sides: ends what waits on it, forgets its
 * messages. Either side may call, or both. What it ends or refuses is told by oh_peer_async_error
 * as OH_ERR_CANCELLED; calls that come meanwhile wait for its end. It waits for kernels of the
 * caller's own that have the lane; one that ended without closing it is known to be over when all
 * is that its GPU had to do (docs/transports/nvlink.md).
 */
OH_API oh_status oh_peer_reset_lane(oh_peer* peer, uint32_t lane, int64_t timeout_ns);

typedef struct oh_stream_info {
  size_t struct_size;
  int32_t ready;              /* the lanes are connected */
  oh_path path;               /* OH_PATH_NVLINK or OH_PATH_PROXY; OH_PATH_NONE: not viable */
  uint64_t small_max;         /* up to here a message lies in the ring (ONEHOP_STREAM_SMALL); by
                                 proxy 0 */
  uint64_t stream_buffered;   /* of one message on lane 0; less on the others by default, and of
                                 many small ones */
  uint64_t device_memory;     /* bytes of it that this peer takes */
  const char* why_not;        /* lives until the next call on this thread; "" if viable */
  const char* why_no_kernels; /* likewise; "" if they carry it, or it is not known yet */
} oh_stream_info;
OH_API oh_status oh_peer_get_stream_info(oh_peer* peer, oh_stream_info* info);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_STREAM_H_ */
