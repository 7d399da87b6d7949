// SPDX-License-Identifier: Apache-2.0
//
// Receiver: the receiving half of the host domain: handles the frames of messages, and decides how
// a matched message gets into its buffer.
//
//   POSTED ──▶ an eager message, whole ──────────────────────────────────────▶ ENDED
//      │  ──▶ the first part of one, or an RTS answered with a CTS ──────────▶ STREAM ──▶ ENDED
//      │  ──▶ an RTS with a slot that this side claims ──────────────────────▶ DIRECT ──▶ ENDED
//      └──▶ the sender claims the slot that was offered (RTR) ───────────────▶ DIRECT ──▶ ENDED
//
// Matcher holds the posted receives, UnexpectedQueue the messages without one, Arrivals the
// messages that arrive in parts. ShortReceives takes most short messages before they get here.
//
// Threading: guarded by the link's lock.
#pragma once

#include <optional>

#include "message/arrivals.h"
#include "message/matcher.h"
#include "message/unexpected.h"
#include "path/direct/transfers.h"
#include "path/staging/bounce_copies.h"
#include "path/staging/staging_pipeline.h"

namespace oh {

class Receiver {
 public:
  struct Parts {
    Transfers& transfers;
    StagingPipeline& pipeline;
    BounceCopies& bounce_copies;
    Matcher& matcher;
  };
  Receiver(Link& link, const Parts& parts)
      : link_(link),
        transfers_(parts.transfers),
        pipeline_(parts.pipeline),
        bounce_copies_(parts.bounce_copies),
        matcher_(parts.matcher),
        arrivals_(link, parts.pipeline) {}

  void post(Request* request);
  // Delivers an unexpected message to the request. False: there is none, or the tag is internal and
  // the first message is too long.
  bool get_unexpected(Request* request);
  // Drops unexpected messages with an internal tag, which their sender has finished.
  void discard(uint64_t tag);
  // A message that no receive has taken yet.
  struct Announced {
    uint64_t length = 0;
    uint64_t tag = 0;
  };
  // The message that a receive with this tag would get at once, if there is one.
  std::optional<Announced> probe(uint64_t tag) {
    const Unexpected* message = first_unexpected(tag);
    return message ? std::optional(Announced{message->length, message->tag}) : std::nullopt;
  }

  // Begins to receive a run of blocks that the peer sends as `op`.
  Status begin_run(Request* run, uint64_t op);
  // Stops a run that serves the peer's operation. True: it has ended; false: it ends once its
  // memory is not accessed.
  bool stop(Request* run, const Status& why);

  // Offers unexpected messages to the any-source receives that were posted or restored since the
  // last call, in post order.
  void offer_unexpected();

  // Cancels a receive. False: its message is in flight; call again after progress, which finds it.
  // `force`: cancels it all the same.
  bool cancel(Request* request, const Status& status, bool force);
  void fail_all(const Status& status);

  // Handles fetches that are over and receives that have stopped.
  bool progress();
  bool idle() const { return !arrivals_.is_fetching() && pipeline_.empty(); }

  Status on_eager(const Frame& frame);
  Status on_data(const Frame& frame);
  Status on_rts(const Frame& frame);
  void on_ready(const Frame& frame);
  void on_abort(const Frame& frame);

  size_t unexpected() const { return unexpected_.size(); }

 private:
  Result<Request*> match(TagRx& tag);
  void repost(Request* request);
  Unexpected* first_unexpected(uint64_t tag) { return matcher_.first_unexpected(tag, unexpected_); }
  bool match_unexpected(Request* request, bool must_fit = false);
  bool deliver(Request* request, Unexpected* message);
  void drop(Unexpected* message);
  void lose_rest(TagRx& tag);
  void return_credit(uint64_t charge);

  // How a matched message is received.
  void receive_eager(Request* request, const Frame& frame);
  bool start_rts(Request* request, const Rts& rts);
  void clear_to_send(Request* request, const Rts& rts);
  bool refuse_name_in_use(Request* request, uint64_t op);
  bool refuse_longer(Request* request, uint64_t length);
  bool refuse_eager(Request* request, uint64_t tag, uint64_t length);
  // A message that has arrived completely.
  struct Whole {
    uint64_t tag;
    uint64_t length;
    bool eager;  // sent before the sender knew of the receive
  };
  void finish_whole(Request* request, const Whole& message);

  void advance(Arrival* arrival, uint64_t size);
  void abort(Arrival* arrival);
  void message_withdrawn(Request* request);

  Link& link_;
  Transfers& transfers_;
  StagingPipeline& pipeline_;
  BounceCopies& bounce_copies_;
  Matcher& matcher_;
  UnexpectedQueue unexpected_;
  Arrivals arrivals_;
  uint64_t charge_held_ = 0;  // eager credit of messages that no receive has taken
};

}  // namespace oh
