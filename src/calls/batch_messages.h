// SPDX-License-Identifier: Apache-2.0
//
// Batches as messages: sends a batch, and posts the receive of one. message_batches.h describes how
// the two sides match.
//
// Threading: any thread; a BatchSend belongs to one call.
#pragma once

#include "endpoint/endpoint.h"
#include "endpoint/peer.h"

namespace oh {

class BatchSend {
 public:
  BatchSend(Endpoint& endpoint, Peer& peer, const LocalBlocks& local, uint64_t tag)
      : endpoint_(endpoint), peer_(peer), local_(local), tag_(tag) {}
  // Sends the batch into the peer's next matching receive. The deadline limits the wait for that
  // receive: on OH_ERR_TIMEOUT nothing was sent.
  Status run(const AfterOption& after, Deadline deadline);

 private:
  BatchLink& batches() { return peer_.operations().batches(); }
  Status next_offer(Deadline deadline);
  Status fulfil();
  Status take_region(Deadline deadline);
  Status put_pieces(Deadline deadline);

  Endpoint& endpoint_;
  Peer& peer_;
  const LocalBlocks& local_;
  const uint64_t tag_;
  LocalBuffer memory_;
  BatchOffer offer_;
  RemoteTarget target_;
  oh_path path_ = OH_PATH_NONE;
  bool taken_ = false;  // this send owns the receive
};

// Posts the receive of a batch. Waits until the deadline for earlier work on the memory, which the
// request then uses. Returns OH_AGAIN as MessageCalls::post_send() does.
Status post_batch(Endpoint& endpoint, Peer& peer, Request* request, const LocalBlocks& local,
                  const AfterOption& after, Deadline deadline);

}  // namespace oh
