/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicator: ranks 0 to size - 1 that meet at one rendezvous. Peers connect on first use.
 *
 * Threading: any number of threads may use one communicator. Ownership: a communicator owns its
 * endpoint. Release the peers that it returns with oh_peer_release.
 */
#ifndef ONEHOP_COMM_H_
#define ONEHOP_COMM_H_

#include "onehop/endpoint.h"
#include "onehop/peer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oh_comm_options {
  size_t struct_size;
  uint32_t rank;
  uint32_t size;
  const char* rendezvous; /* "tcp://HOST:PORT", served by rank 0. Unless HOST is loopback, all ranks
                             need the same ONEHOP_SECRET */
  const void* unique_id;  /* instead of rendezvous: the bytes of oh_unique_id */
  size_t unique_id_size;
  int64_t timeout_ns; /* until all ranks have joined */
  oh_endpoint_options endpoint;
} oh_comm_options;

/*
 * Creates a unique id. Pass it to all ranks by any means. The calling process serves the rendezvous
 * until all ranks have joined, or until the default timeout.
 */
OH_API oh_status oh_unique_id(void* id, size_t* size);

/*
 * Blocks until all ranks have joined. OH_ERR_TIMEOUT: the error text names the missing ranks.
 * OH_ERR_REFUSED: the rank is taken. OH_ERR_AUTH: the secret is missing or wrong.
 */
OH_API oh_status oh_comm_create(const oh_comm_options* options, oh_comm** comm);
/*
 * As oh_comm_create, but another thread can cancel it: store a non-zero value in the word at
 * `cancelled`, which is read atomically. The call then returns OH_ERR_CANCELLED soon, and leaves
 * nothing behind: the rendezvous port is free, and the other ranks still wait for this one.
 */
OH_API oh_status oh_comm_create_cancellable(const oh_comm_options* options, const int* cancelled,
                                            oh_comm** comm);
/* Closes the communicator and its endpoint: see oh_endpoint_close. */
OH_API void oh_comm_close(oh_comm* comm);
OH_API void oh_comm_destroy(oh_comm* comm);
OH_API uint32_t oh_comm_rank(oh_comm* comm);
OH_API uint32_t oh_comm_size(oh_comm* comm);

/* The peer of a rank. Connects if there is no link yet. */
OH_API oh_status oh_comm_peer(oh_comm* comm, int64_t rank, int64_t timeout_ns, oh_peer** peer);
/*
 * Waits for a new link to a rank whose link was lost or closed, and returns its peer. Until then
 * oh_comm_peer returns the lost one. The other side must call it too. Returns at once if the link
 * works. `cancelled`: NULL, or as for oh_comm_create_cancellable.
 *
 * If the rank's process has ended, start another one that calls oh_comm_create with the same rank,
 * size and rendezvous (or unique id). It joins while rank 0 is in oh_comm_reconnect for it. If rank
 * 0 itself has ended, create another communicator on all ranks. Operations in flight are lost.
 * Barriers continue if all other ranks have entered as many as rank 0.
 */
OH_API oh_status oh_comm_reconnect(oh_comm* comm, int64_t rank, int64_t timeout_ns,
                                   const int* cancelled, oh_peer** peer);
/* The communicator's endpoint. The communicator owns it: do not destroy it. */
OH_API oh_endpoint* oh_comm_endpoint(oh_comm* comm);
/*
 * Returns once all ranks have called it. OH_ERR_PEER_LOST, at every rank: a rank is lost; the error
 * text names it. After OH_ERR_TIMEOUT the ranks may be at different barriers: create another
 * communicator.
 */
OH_API oh_status oh_comm_barrier(oh_comm* comm, int64_t timeout_ns);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_COMM_H_ */
