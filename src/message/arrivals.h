// SPDX-License-Identifier: Apache-2.0
//
// Arrivals: messages that arrive in parts, by the name that their sender gave them, and parts that
// UCX fetches.
//
// Threading: guarded by the link's lock.
#pragma once

#include <memory>
#include <vector>

#include "base/pool.h"
#include "message/unexpected.h"
#include "path/staging/staging_pipeline.h"

namespace oh {

// One message. Its bytes go to `request`, else to `unexpected`, else nowhere.
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
  bool aborted = false;                 // it ends when the fetch is over
  bool withdrawn = false;               // no bytes come, only its end
};

class Arrivals {
 public:
  Arrivals(Link& link, StagingPipeline& pipeline) : link_(link), pipeline_(pipeline) {}

  Arrival* begin(uint64_t op, uint64_t tag, uint64_t length, uint64_t charge);
  void end(Arrival* arrival);
  // The bytes that follow go to the receive.
  static void bind(Arrival* arrival, Request* request);
  // The rest goes nowhere.
  void drop_rest(const Unexpected& message) { find(message.op)->unexpected = nullptr; }

  Arrival* find(uint64_t op) const;
  // That of a receive; null: nothing yet.
  Arrival* of(const Request* request) const;
  // Whether another message is under way under that name, which no honest sender does.
  bool is_name_in_use(uint64_t op) const;

  // Stores a part. False: UCX fetches it; next_fetched() tells when that is over.
  Result<bool> take(Arrival* arrival, const Frame& frame);
  // An arrival whose part has been fetched, or has failed, which ended its receive.
  Arrival* next_fetched();
  bool is_fetching() const { return !fetching_.empty(); }
  // Counts `size` more bytes, stored or dropped. True: all of the message is here.
  bool advance(Arrival* arrival, uint64_t size);

  // Takes the message from its receive: the rest is dropped, and the sender is told.
  void reject(Request* request, const Status& why);
  // The channel writes nothing more of it anywhere.
  void revoke(const Arrival& arrival) {
    if (link_.ucx) link_.ucx->targets().revoke(arrival.op);
  }
  void fail_all(const Status& status);

 private:
  Result<uint8_t*> place_of(Arrival& arrival, const Frame& frame);

  Link& link_;
  StagingPipeline& pipeline_;
  Pool<Arrival> pool_;
  std::vector<Arrival*> named_;  // by index of the sender's name
  std::vector<Arrival*> fetching_;
};

}  // namespace oh
