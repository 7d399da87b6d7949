// SPDX-License-Identifier: Apache-2.0
//
// Arrivals: messages that arrive in parts, by the sender's operation ID, and parts that UCX
// fetches.
//
// Threading: guarded by the link's lock.
#pragma once

#include <memory>
#include <vector>

#include "base/pool.h"
#include "message/unexpected.h"
#include "path/staging/staging_pipeline.h"

namespace oh {

// One message. Its bytes go to `request`, else to `unexpected`, else they are dropped.
struct Arrival {
  uint64_t op = 0;
  uint64_t tag = 0;
  uint64_t length = 0;
  uint64_t charge = 0;  // eager credit that it holds
  uint64_t received = 0;
  Request* request = nullptr;
  Unexpected* unexpected = nullptr;
  std::shared_ptr<InFlight> in_flight;  // a part that UCX fetches
  uint64_t fetched = 0;                 // the size of that part
  bool aborted = false;                 // withdrawn by the sender: ends when the fetch is over
  bool withdrawn = false;               // no bytes arrive, only its abort
};

class Arrivals {
 public:
  Arrivals(Link& link, StagingPipeline& pipeline) : link_(link), pipeline_(pipeline) {}

  Arrival* begin(uint64_t op, uint64_t tag, uint64_t length, uint64_t charge);
  void end(Arrival* arrival);
  // Directs the following bytes to the receive.
  static void bind(Arrival* arrival, Request* request);
  // Drops the rest of the message.
  void drop_rest(const Unexpected& message) { find(message.op)->unexpected = nullptr; }

  Arrival* find(uint64_t op) const;
  // The arrival of a receive; null: none yet.
  Arrival* of(const Request* request) const;
  // Whether another message in flight has that ID, which a correct sender never causes.
  bool is_name_in_use(uint64_t op) const;

  // Stores a part. False: UCX fetches it; next_fetched() reports the end of the fetch.
  Result<bool> take(Arrival* arrival, const Frame& frame);
  // Returns an arrival whose fetch is over, or null. A failed fetch has ended or stopped its
  // receive.
  Arrival* next_fetched();
  bool is_fetching() const { return !fetching_.empty(); }
  // Counts `size` more bytes, stored or dropped. True: the message is complete.
  bool advance(Arrival* arrival, uint64_t size);

  // Detaches the message from its receive: drops the rest and sends a reject.
  void reject(Request* request, const Status& why);
  // Stops the channel from writing any more of it.
  void revoke(const Arrival& arrival) {
    if (link_.ucx) link_.ucx->targets().revoke(arrival.op);
  }
  void fail_all(const Status& status);

 private:
  Result<uint8_t*> place_of(Arrival& arrival, const Frame& frame);

  Link& link_;
  StagingPipeline& pipeline_;
  Pool<Arrival> pool_;
  std::vector<Arrival*> named_;  // by the index in the sender's operation ID
  std::vector<Arrival*> fetching_;
};

}  // namespace oh
