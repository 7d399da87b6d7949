// SPDX-License-Identifier: Apache-2.0
//
// Batches as messages: how one is sent, and how a receive of one is posted. message_batches.h tells
// how the two sides find each other.
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
  // The deadline is for a receive to come: OH_ERR_TIMEOUT, nothing was sent.
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
  bool taken_ = false;  // the receive is ours
};

// Waits until the deadline for earlier work on the memory, which is the request's; OH_AGAIN as for
// MessageCalls::post_send().
Status post_batch(Endpoint& endpoint, Peer& peer, Request* request, const LocalBlocks& local,
                  const AfterOption& after, Deadline deadline);

}  // namespace oh
