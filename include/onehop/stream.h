/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream domain: operations in the order of a GPU's stream. Each call enqueues and returns.
 * Calls may be captured into a graph and replayed any number of times, with no per-replay
 * bookkeeping.
 *
 * Matching: within a lane (0 to OH_LANES - 1), send k of one side matches receive k of the other,
 * in the order in which the streams run them. Stream operations never match those of the host
 * domain (oh_peer_send). On one lane the calls of a process are ordered, also from several streams.
 * The caller orders graphs that share a lane, by edges or events: a call may take its lane while
 * earlier work in its stream still waits. Lanes do not wait for each other.
 *
 * Completion, in stream order: a send is complete when its buffer may be written again, a receive
 * when its bytes have arrived. A send of at most `stream_buffered` bytes (oh_peer_get_stream_info)
 * does not wait for its receive. Put longer exchanges in both directions into one group. Memory
 * must stay valid until the stream has finished with it.
 *
 * Errors after a call has returned are reported by oh_peer_async_error. After OH_ERR_TRUNCATED,
 * OH_ERR_RANGE and OH_ERR_CANCELLED (ended by a reset) the lane continues. After OH_ERR_TIMEOUT,
 * OH_ERR_PEER_LOST, OH_ERR_PROTOCOL and OH_ERR_INVALID (two operations at once on a lane) the lane
 * is unusable until oh_peer_reset_lane. Signals and puts never fail a lane. Each wait of a kernel
 * ends at the timeout at the latest; an operation by proxy may have two such waits.
 *
 * Streams are CUstream (cudaStream_t) of the endpoint's device; NULL is the legacy default stream.
 *
 * Threading: any number of threads and streams may use one peer. A group belongs to its thread.
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
  int64_t timeout_ns; /* of each wait on the device, and of connecting if necessary */
  uint32_t lane;
  /* Device memory, 8 bytes each, or NULL. size_from: bytes to send, at most `size`; read
   * when the send runs. size_to: gets the size of the received message. */
  const uint64_t* size_from;
  uint64_t* size_to;
} oh_stream_options;

/*
 * Connects the lanes and allocates what they need; otherwise the first stream call does. While a
 * stream is being captured only ready peers can be used: OH_ERR_INVALID, and nothing is captured.
 * If kernels cannot access the peer's memory (another host, no peer access), or only over a link
 * without native atomics (PCIe), the host carries the stream operations
 * (docs/transports/proxy.md). OH_ERR_NOT_VIABLE: neither is possible; the error text says why.
 */
OH_API oh_status oh_peer_warmup(oh_peer* peer, int64_t timeout_ns);
/* The same for `count` ranks. Connects where there is no link yet. */
OH_API oh_status oh_comm_warmup(oh_comm* comm, const int32_t* ranks, size_t count,
                                int64_t timeout_ns);

/* Send and receive of device memory of the endpoint's GPU; any size in bytes, any alignment.
 * `options` may be NULL. */
OH_API oh_status oh_peer_stream_send(oh_peer* peer, void* stream, const void* data, size_t size,
                                     const oh_stream_options* options);
OH_API oh_status oh_peer_stream_recv(oh_peer* peer, void* stream, void* data, size_t capacity,
                                     const oh_stream_options* options);

/*
 * Copies `size` bytes into the peer's region. If the region is mapped here the copy engine copies,
 * which takes no multiprocessor from other kernels: device memory, and host memory of
 * oh_shared_alloc, which the first call registers with CUDA. `data` may be host memory; if it is
 * neither shared nor pinned, the call may block until the stream reaches the copy. If the region is
 * not mapped and the peer's streams use the proxy, the host copies, from device memory of the
 * endpoint's GPU, within the default timeout (OH_ERR_INVALID: other memory). A signal that follows
 * makes the bytes visible to the peer. OH_ERR_RANGE: outside of the region. OH_ERR_READ_ONLY.
 * OH_ERR_RETIRED: the region is mapped here and has been deregistered. OH_ERR_NOT_VIABLE: neither
 * way is possible. oh_peer_async_error reports later errors of a put by proxy, also OH_ERR_RETIRED.
 */
OH_API oh_status oh_peer_stream_put(oh_peer* peer, void* stream, const void* data,
                                    oh_remote_region* remote, size_t remote_offset, size_t size);
/*
 * Copies out of the peer's region in the same way; the region may be read-only. The copy reads the
 * region when the stream reaches it, so it sees what the peer wrote before a signal that the stream
 * has waited for. Later work of the stream sees the bytes in `data`.
 */
OH_API oh_status oh_peer_stream_get(oh_peer* peer, void* stream, void* data,
                                    oh_remote_region* remote, size_t remote_offset, size_t size);
/*
 * Moves many blocks in the same way (onehop/batch.h; scatter and gather: `packed`). If the regions
 * are mapped here, kernels copy blocks between GPU memory, and between it and registered host
 * memory, up to 1,000 blocks each; they wait until other kernels leave room on the GPU
 * (ONEHOP_BATCH_KERNEL). The copy engine copies blocks longer than 2 MiB (512 KiB with host
 * memory), and local host memory that is not registered: the driver may block the call for it. The
 * arrays belong to the caller again when the call returns, also if it was captured.
 *
 * OH_ERR_RANGE: a block is out of bounds; the error text names it. OH_ERR_RETIRED: the region is
 * deregistered. In both cases nothing is enqueued. oh_region_deregister does not wait for
 * operations that peers enqueued before it. If the driver fails, some blocks may be in the stream.
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
 * Atomic operations on the 8 bytes at `remote_offset`, after all earlier work of the stream. The
 * address is a multiple of 8. `before`, if not NULL, is 8 aligned bytes of device memory that get
 * the previous value. compare_swap writes `value` if it finds `expected`.
 * On GPU memory a kernel executes them, at system scope: atomic with those of all kernels and
 * streams (onehop/device.cuh). OH_ERR_NOT_VIABLE: the memory is not mapped here, or the link has no
 * native atomics. On host memory the host executes them if the peer's streams use the proxy,
 * within the default timeout: atomic as oh_peer_fetch_add is. Otherwise OH_ERR_NOT_VIABLE.
 * oh_peer_async_error reports later errors; `before` is 0 then. Other errors: OH_ERR_INVALID,
 * OH_ERR_RANGE, OH_ERR_READ_ONLY; OH_ERR_RETIRED as for a put.
 */
OH_API oh_status oh_peer_stream_fetch_add(oh_peer* peer, void* stream, oh_remote_region* remote,
                                          size_t remote_offset, uint64_t value, uint64_t* before);
OH_API oh_status oh_peer_stream_compare_swap(oh_peer* peer, void* stream, oh_remote_region* remote,
                                             size_t remote_offset, uint64_t expected,
                                             uint64_t value, uint64_t* before);
/* Adds `count` to the peer's stream signal slot for this side, after all earlier work of the
 * stream. Stream signals are separate from those of oh_peer_signal. */
OH_API oh_status oh_peer_stream_signal(oh_peer* peer, void* stream, uint32_t slot, uint64_t count);
/* The stream waits until this side's slot has reached `count`, then subtracts `count`. */
OH_API oh_status oh_peer_stream_wait_signal(oh_peer* peer, void* stream, uint32_t slot,
                                            uint64_t count, const oh_stream_options* options);

/*
 * Collects the thread's stream calls between begin and end, and starts them together at the end,
 * with one launch per stream. Sends and receives of a group do not wait for each other, except
 * those of one lane and direction, which run in order. Groups may be nested; only the outermost end
 * starts the operations. At most 128 operations a stream. Puts and gets are enqueued at once.
 */
OH_API oh_status oh_group_begin(void);
OH_API oh_status oh_group_end(void);

/* The handle of a lane for user kernels (onehop/device.cuh). Valid until the peer is closed.
 * OH_ERR_NOT_VIABLE: kernels cannot access the peer's memory, or only over a link without native
 * atomics; the error text says why. */
OH_API oh_status oh_peer_device_handle(oh_peer* peer, uint32_t lane, oh_lane_handle* handle);
/* The handles of all ranks, at most OH_DEVICE_RANKS. Connects them. */
OH_API oh_status oh_comm_device_handle(oh_comm* comm, uint32_t lane, oh_comm_handle* handle);
/*
 * For receives in user kernels: large messages then go straight into this device memory, not
 * through the lane's chunks, from when the peer has mapped it until it is freed. `size` is in
 * bytes. OH_ERR_NOT_VIABLE: the peer cannot map it.
 */
OH_API oh_status oh_peer_lane_target(oh_peer* peer, void* data, size_t size,
                                     oh_lane_target* target);
/* A peer's region for puts by kernels. Valid until the region is detached. OH_ERR_READ_ONLY: the
 * region is read-only. */
OH_API oh_status oh_remote_region_device(oh_remote_region* remote, oh_remote_memory* memory);

/*
 * Makes a failed lane usable again, at both sides: ends the operations that wait on it and discards
 * its messages. Either side, or both, may call. oh_peer_async_error reports the operations that it
 * ends or refuses as OH_ERR_CANCELLED. Calls on the lane meanwhile wait for the end of the reset.
 * The reset waits for user kernels that hold the lane. A kernel that ended without closing the lane
 * counts as over once its GPU has finished all of its work (docs/transports/nvlink.md).
 */
OH_API oh_status oh_peer_reset_lane(oh_peer* peer, uint32_t lane, int64_t timeout_ns);

typedef struct oh_stream_info {
  size_t struct_size;
  int32_t ready;              /* not 0: the lanes are connected */
  oh_path path;               /* OH_PATH_NVLINK or OH_PATH_PROXY; OH_PATH_NONE: not viable */
  uint64_t small_max;         /* largest message that lies in the ring (ONEHOP_STREAM_SMALL); 0 by
                                 proxy */
  uint64_t stream_buffered;   /* of one message on lane 0; by default less on other lanes, and for
                                 many small messages */
  uint64_t device_memory;     /* bytes of device memory that this peer uses */
  const char* why_not;        /* lives until the next call on this thread; "" if viable */
  const char* why_no_kernels; /* likewise; "" if kernels carry it, or if not known yet */
} oh_stream_info;
OH_API oh_status oh_peer_get_stream_info(oh_peer* peer, oh_stream_info* info);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_STREAM_H_ */
