// SPDX-License-Identifier: Apache-2.0
//
// Sender: the sending half of the host domain. A message goes straight into an advertised buffer,
// or early against credit, or it asks first:
//
//   QUEUED ──▶ advert for this number: claim it ─────────────────────▶ DIRECT ──▶ ENDED
//      │  ──▶ small and credit left: EAGER (then DATA) ──▶ STREAM ──────────────▶ ENDED
//      └──▶ RTS: OFFERED ──▶ the receiver claims our slot ───────────▶ DIRECT ──▶ ENDED
//                       └──▶ CTS: DATA ──▶ STREAM ──────────────────────────────▶ ENDED
//
// Messages are numbered per tag when they go out; an advert is used for its number only. After a
// send that was offered is withdrawn, the numbers of both sides would differ: adverts are void, and
// a new epoch starts with the next message that goes out, one for all that were withdrawn until
// then.
//
// Threading: guarded by the link's lock.
#pragma once

#include <array>
#include <vector>

#include "base/list.h"
#include "base/tag_table.h"
#include "path/direct/transfers.h"
#include "path/staging/staging_pipeline.h"

namespace oh {

class Sender {
 public:
  Sender(Link& link, Transfers& transfers, StagingPipeline& pipeline)
      : link_(link), transfers_(transfers), pipeline_(pipeline) {}

  // Whether one more send may wait for its receive.
  bool has_room() const { return link_.pending_sends < link_.mine.max_pending; }
  void post(Request* request);
  // The same for a run of blocks that the other side has heard of by a frame of its own.
  void await_cts(Request* run) {
    run->phase = Phase::kOffered;
    run->granted = run->border = 0;
  }
  // The other side does not take it, or fails at it.
  void refuse(Request* request, const Status& why);
  // Ends a run that is the other side's to wait for, once nobody is at its memory: true if it has.
  bool stop(Request* run, const Status& why);
  // Whether a receive was advertised for the next message of its tag.
  bool has_advert(const Request& request) {
    const TagTx* tag = tags_.find(request.tag);
    return queue_.empty() && tag && !tag->adverts.empty();
  }
  // Sends a message at once, if it fits into one frame and nothing is in its way.
  bool send_now(const uint8_t* data, size_t size, uint64_t tag);
  bool progress();
  // Of that what the channel is through with. True when there was some.
  bool end_zero_copies();
  bool idle() const {
    return queue_.empty() && streams_.empty() && zero_copies_.empty() &&
           !pipeline_.has_stopped(StagingDirection::kOut);
  }

  // Takes a request back: false when a direct transfer of it is under way, or the channel has its
  // buffer; `give_up` leaves that in doubt.
  bool cancel(Request* request, const Status& status, bool give_up);
  void fail_all(const Status& status);

  void on_cts(const Frame& frame);
  void on_reject(const Frame& frame);
  Status on_advert(const Frame& frame);

  size_t queued() const { return queue_.size(); }

 private:
  struct Advert {
    uint32_t number;
    uint64_t capacity;
    Transfers::Offer offer;
  };
  struct TagTx {
    uint64_t tag = 0;
    TagTx* next_in_bucket = nullptr;
    uint32_t number = 0;  // of the next message
    std::vector<Advert> adverts;
    void reset() {
      number = 0;
      adverts.clear();
    }
    bool idle() const { return true; }
  };

  bool transmit(Request* request);
  bool transmit_eager(Request* request, TagTx& tag, uint64_t charge);
  bool transmit_rts(Request* request, TagTx& tag);
  bool use_advert(Request* request, TagTx& tag);
  bool push_stream(Request* request);
  void begin_staging(Request* request);
  void stop_staging(Request& request, const Status& why);
  ByteView next_part(Request& request);
  bool end_staging(Request* request);
  // kTaken: the request is in zero_copies_ until the channel is through with the part, or has
  // failed.
  enum class Handover { kNoRoom, kTaken, kSent };
  Handover send_zero_copy(Request* request, const Frame& frame);
  void finish_sent(Request* request);
  void send_abort(const Request& request, const Status& why);
  void withdraw(const Request& request, const Status& why);
  void end_zero_copy(Request* request);
  void new_epoch();
  void say_epoch();
  bool has_credit(uint64_t charge);

  static constexpr size_t kMaxTags = 8192;

  Link& link_;
  Transfers& transfers_;
  StagingPipeline& pipeline_;
  TagTable<TagTx> tags_;
  List<Request, InQueue> queue_;        // not on the wire yet, in order
  List<Request, InQueue> streams_;      // on the wire, more to come
  List<Request, InQueue> zero_copies_;  // handed over in whole, and not over
  uint64_t charge_used_ = 0;
  uint64_t charge_returned_ = 0;  // as last looked up
  uint32_t epoch_ = 0;
  bool epoch_unsaid_ = false;  // the other side has not been told of it, and no number is in use
  std::array<uint64_t, kSlots> advertised_{};  // tag that each slot was last advertised with
};

}  // namespace oh
