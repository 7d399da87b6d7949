/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Send and receive with NCCL's (and HCCL's) signatures, to port existing code. Only the prefix of
 * the names differs; enum values are NCCL's. It uses the stream domain of onehop/stream.h, on lane
 * 0, with the same rules: a send of at most `stream_buffered` bytes does not wait for its receive;
 * put longer exchanges in both directions into one group.
 *
 * Differences from NCCL: point-to-point only. A communicator belongs to one process and one GPU,
 * and is created outside of groups. Operations between the same two ranks in one group run one
 * after the other. Before a capture, use each pair of ranks of the graph once, or call
 * ohCommWarmup. Every wait ends (ONEHOP_TIMEOUT). oh_error_text() describes the last error.
 *
 * Threading: any thread may use a communicator; a group belongs to its thread. Ownership: the
 * caller owns the communicator until ohCommDestroy or ohCommAbort. Before ohCommDestroy no stream
 * may have operations of the communicator pending.
 */
#ifndef ONEHOP_NCCL_H_
#define ONEHOP_NCCL_H_

#include "onehop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ohComm* ohComm_t;

#define OH_UNIQUE_ID_BYTES 512
typedef struct ohUniqueId {
  char internal[OH_UNIQUE_ID_BYTES];
} ohUniqueId;

typedef enum ohResult_t {
  ohSuccess = 0,
  ohUnhandledCudaError = 1, /* the GPU's context has failed */
  ohSystemError = 2,        /* no path, out of memory, a failed system call, the configuration */
  ohInternalError = 3,
  ohInvalidArgument = 4,
  ohInvalidUsage = 5, /* a message longer than its receive, a closed communicator */
  ohRemoteError = 6,  /* the peer is lost, or did not answer in time */
  ohInProgress = 7,
  ohNumResults = 8
} ohResult_t;

typedef enum ohDataType_t {
  ohInt8 = 0,
  ohChar = 0,
  ohUint8 = 1,
  ohInt32 = 2,
  ohInt = 2,
  ohUint32 = 3,
  ohInt64 = 4,
  ohUint64 = 5,
  ohFloat16 = 6,
  ohHalf = 6,
  ohFloat32 = 7,
  ohFloat = 7,
  ohFloat64 = 8,
  ohDouble = 8,
  ohBfloat16 = 9,
  ohFloat8e4m3 = 10,
  ohFloat8e5m2 = 11,
  ohNumTypes = 12
} ohDataType_t;

typedef struct ohConfig_t {
  size_t struct_size;
  const char* device; /* "cuda:1", "GPU-<uuid>"; NULL: the thread's current device */
  int64_t timeout_ns; /* until all ranks have joined */
} ohConfig_t;

/* Creates the id. Pass it to all ranks by any means; the calling process serves the rendezvous. */
OH_API ohResult_t ohGetUniqueId(ohUniqueId* id);
/* Blocks until all ranks have joined. Uses the calling thread's current device. */
OH_API ohResult_t ohCommInitRank(ohComm_t* comm, int nranks, ohUniqueId id, int rank);
/* `config` may be NULL. */
OH_API ohResult_t ohCommInitRankConfig(ohComm_t* comm, int nranks, ohUniqueId id, int rank,
                                       const ohConfig_t* config);
/* Connects to `count` ranks now and prepares their lanes. `ranks` NULL: all other ranks. */
OH_API ohResult_t ohCommWarmup(ohComm_t comm, const int* ranks, size_t count);
OH_API ohResult_t ohCommDestroy(ohComm_t comm);
/* The same while operations are pending: they end with an error. */
OH_API ohResult_t ohCommAbort(ohComm_t comm);
/* The first error that occurred after a call had returned. Once there is one it stays. */
OH_API ohResult_t ohCommGetAsyncError(ohComm_t comm, ohResult_t* async_error);
OH_API ohResult_t ohCommCount(ohComm_t comm, int* count);
OH_API ohResult_t ohCommUserRank(ohComm_t comm, int* rank);

/* Enqueues on `stream`, a cudaStream_t (CUstream) of the communicator's device. `count` is in
 * elements of `datatype`. The first use of a rank connects. */
OH_API ohResult_t ohSend(const void* sendbuff, size_t count, ohDataType_t datatype, int peer,
                         ohComm_t comm, void* stream);
OH_API ohResult_t ohRecv(void* recvbuff, size_t count, ohDataType_t datatype, int peer,
                         ohComm_t comm, void* stream);

/* As oh_group_begin and oh_group_end: the outermost end starts the sends and receives. */
OH_API ohResult_t ohGroupStart(void);
OH_API ohResult_t ohGroupEnd(void);

/* One line of text. Never NULL. */
OH_API const char* ohGetErrorString(ohResult_t result);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_NCCL_H_ */
