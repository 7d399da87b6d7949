// SPDX-License-Identifier: Apache-2.0
//
// Sender: the sending half of the host domain. A message goes straight into a receive that was
// offered (RTR), or is sent eagerly against credit, or is announced first (RTS):
//
//   QUEUED ──▶ RTR for this number: claim its slot ──────────────────▶ DIRECT ──▶ ENDED
//      │  ──▶ small and credit left: EAGER (then DATA) ──▶ STREAM ──────────────▶ ENDED
//      └──▶ RTS: OFFERED ──▶ the receiver claims the slot ───────────▶ DIRECT ──▶ ENDED
//                       └──▶ CTS: DATA ──▶ STREAM ──────────────────────────────▶ ENDED
//
// SendTags holds the numbers, RTRs and epochs; SendStreams sends messages in parts.
//
// Threading: guarded by the link's lock.
#pragma once

#include "base/list.h"
#include "message/send_streams.h"
#include "message/send_tags.h"
#include "path/direct/transfers.h"
#include "path/staging/staging_pipeline.h"

namespace oh {

class Sender {
 public:
  Sender(Link& link, Transfers& transfers, StagingPipeline& pipeline)
      : link_(link), transfers_(transfers), tags_(link), streams_(link, pipeline, tags_) {}

  // Whether one more send may wait for its receive.
  bool has_room() const { return link_.pending_sends < link_.mine.max_pending; }
  void post(Request* request);
  // Waits for the CTS of a run of blocks, which another frame has announced to the peer.
  void await_cts(Request* run) {
    run->phase = Phase::kOffered;
    run->granted = run->border = 0;
  }
  // The peer has rejected the request, or failed to receive it.
  void refuse(Request* request, const Status& why);
  // Stops a run that serves the peer's operation. True: it has ended; false: it ends once its
  // memory is not accessed.
  bool stop(Request* run, const Status& why);
  // Whether a receive was offered for the next message of its tag.
  bool has_rtr(const Request& request) {
    const TagTx* tag = tags_.find(request.tag);
    return queue_.empty() && tag && !tag->ready.empty();
  }
  // Sends a message at once, if it fits into one frame and nothing is queued ahead of it.
  bool send_now(const uint8_t* data, size_t size, uint64_t tag);
  bool progress();
  // Ends the zero-copy sends that UCX has released. True when there were some.
  bool end_zero_copies() { return streams_.end_zero_copies(); }
  bool idle() const { return queue_.empty() && streams_.idle(); }

  // Cancels a request. False: a direct transfer is in flight, or its buffer is in use. In the
  // second case `give_up` ends the request with its buffer in doubt.
  bool cancel(Request* request, const Status& status, bool give_up);
  void fail_all(const Status& status);

  void on_cts(const Frame& frame);
  void on_reject(const Frame& frame);
  Status on_rtr(const Frame& frame) { return tags_.on_rtr(frame); }

 private:
  bool transmit(Request* request);
  bool transmit_eager(Request* request, TagTx& tag, uint64_t charge);
  bool transmit_rts(Request* request, TagTx& tag);
  bool use_rtr(Request* request, TagTx& tag);
  bool has_credit(uint64_t charge);

  Link& link_;
  Transfers& transfers_;
  SendTags tags_;
  SendStreams streams_;
  List<Request, InQueue> queue_;  // not on the wire yet, in order
  uint64_t charge_used_ = 0;
  uint64_t charge_returned_ = 0;  // as last read
};

}  // namespace oh
