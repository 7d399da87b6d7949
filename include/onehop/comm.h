/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicator: ranks 0 to size - 1 that meet at one rendezvous. Peers connect on first use.
 *
 * Threading: any number of threads. Ownership: a communicator owns its endpoint; peers that it
 * hands out are released by the caller.
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
  const char* rendezvous; /* "tcp://HOST:PORT"; rank 0 serves it. Unless HOST is loopback, all ranks
                             need the same ONEHOP_SECRET */
  const void* unique_id;  /* or the bytes of oh_unique_id */
  size_t unique_id_size;
  int64_t timeout_ns; /* for all ranks to come */
  oh_endpoint_options endpoint;
} oh_comm_options;

/*
 * A unique id: pass it to all ranks by any means. The calling process serves the rendezvous until
 * all ranks have met or the default timeout has passed.
 */
OH_API oh_status oh_unique_id(void* id, size_t* size);

/*
 * Blocks until all ranks have come. OH_ERR_TIMEOUT names those that have not; OH_ERR_REFUSED: the
 * rank is taken; OH_ERR_AUTH: the secret is missing or wrong.
 */
OH_API oh_status oh_comm_create(const oh_comm_options* options, oh_comm** comm);
/*
 * The same, but it ends with OH_ERR_CANCELLED soon after another thread has stored non-zero in the
 * word at `cancelled`, which is read atomically. Nothing of the attempt is left then: the port of
 * the rendezvous is free, and the other ranks still wait for this one.
 */
OH_API oh_status oh_comm_create_cancellable(const oh_comm_options* options, const int* cancelled,
                                            oh_comm** comm);
/* Closes it and its endpoint: see oh_endpoint_close. */
OH_API void oh_comm_close(oh_comm* comm);
OH_API void oh_comm_destroy(oh_comm* comm);
OH_API uint32_t oh_comm_rank(oh_comm* comm);
OH_API uint32_t oh_comm_size(oh_comm* comm);

/* The peer of a rank, connected if need be. */
OH_API oh_status oh_comm_peer(oh_comm* comm, int64_t rank, int64_t timeout_ns, oh_peer** peer);
/*
 * After the link to a rank was lost or closed: waits until there is one again, and returns the
 * rank's peer. oh_comm_peer() answers with the lost one until then. The other side calls it too. If
 * that process has ended, start another that calls oh_comm_create() with the same rank, size and
 * rendezvous (or unique id): it joins while rank 0 is in oh_comm_reconnect() for it. A communicator
 * whose rank 0 has ended takes no rank back: create another on all ranks. What was under way is
 * lost; barriers go on if all others have entered as many as rank 0. At once if the link is well.
 * `cancelled`: NULL, or as for oh_comm_create_cancellable.
 */
OH_API oh_status oh_comm_reconnect(oh_comm* comm, int64_t rank, int64_t timeout_ns,
                                   const int* cancelled, oh_peer** peer);
/* The communicator's endpoint; it stays the communicator's. */
OH_API oh_endpoint* oh_comm_endpoint(oh_comm* comm);
/* Returns when all ranks have called it; with OH_ERR_PEER_LOST at each of them where one is lost,
 * and the text names it. After a timeout its ranks are at different barriers: create another
 * communicator. */
OH_API oh_status oh_comm_barrier(oh_comm* comm, int64_t timeout_ns);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_COMM_H_ */
