// SPDX-License-Identifier: Apache-2.0
//
// MessageBatches: batches as messages, the receiving half. A receive makes a region of its memory
// and sends the layout of its blocks to the peer, as a message with an internal tag. The sender
// takes the region for its batch, writes into it as a put does, and reports the end. So send k of a
// tag matches the k-th receive that was not cancelled; the word of the region decides whether a
// receive was cancelled or taken.
//
//   receiver: POSTED, offer ───────────▶ sender: takes the region ──▶ puts ──▶ BatchEnd ──▶ ENDED
//                └─ given up: region withdrawn ▶ finds it gone, takes the next offer
//
// calls/batch_messages.h has the sending half.
//
// Threading: guarded by the link's lock.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "link/link.h"
#include "link/regions.h"
#include "link/tags.h"
#include "message/batch/batch_offer.h"
#include "message/sender.h"
#include "one_sided/one_sided_calls.h"

namespace oh {

// One receive, until its request has ended and its offer is no longer read.
struct BatchReceive {
  Request* request = nullptr;  // null: it has ended
  std::shared_ptr<RegionRecord> region;
  Bytes offer;
  Request offering;               // the send of the offer
  std::optional<Status> outcome;  // result, once known; the receive ends when its memory is free
};

class MessageBatches final : public PieceOwner {
 public:
  MessageBatches(Link& link, Sender& sender, OneSided& one_sided, OneSidedCalls& calls,
                 RegionTable& regions)
      : link_(link), sender_(sender), one_sided_(one_sided), calls_(calls), regions_(regions) {}

  // The internal tag of the offers for `tag`: above all user tags.
  static constexpr uint64_t offer_tag(uint64_t tag) { return kOfferTags + tag; }

  void post(Request* request, std::unique_ptr<BatchReceive> receive);
  // The send of an offer has ended.
  void piece_ended(Request* offering) override;
  // Handles the end of a batch, after which its sender writes no more.
  Status on_end(const Frame& frame);

  // Cancels a receive. False: its sender has taken the region. `give_up` ends it all the same; its
  // memory may be in doubt then.
  bool cancel(Request* request, const Status& status, bool give_up);
  // Whether the memory of a receive that was in doubt is no longer accessed.
  bool released(const Request& request) { return is_left(*request.doubt_region); }
  void fail_all(const Status& status);

  // Ends receives whose outcome is known and whose memory is free.
  bool progress();
  bool idle() const { return decided_ == 0; }

 private:
  uint64_t retire(const RegionRecord& region);
  void decide(BatchReceive& receive, Status outcome, uint64_t word);
  bool settle(BatchReceive& receive);
  bool is_left(const RegionRecord& region);
  void finish(BatchReceive& receive, Status status);
  void forget(const BatchReceive& receive);

  Link& link_;
  Sender& sender_;
  OneSided& one_sided_;
  OneSidedCalls& calls_;
  RegionTable& regions_;
  std::vector<std::unique_ptr<BatchReceive>> receives_;
  size_t decided_ = 0;  // receives with an outcome
};

}  // namespace oh
