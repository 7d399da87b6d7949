// SPDX-License-Identifier: Apache-2.0
//
// SendStreams: sends that leave in parts: through the ring or the socket, as zero-copy sends of
// UCX, or from device memory through the staging pipeline.
//
// Threading: guarded by the link's lock.
#pragma once

#include "base/list.h"
#include "message/send_tags.h"
#include "path/staging/staging_pipeline.h"

namespace oh {

class SendStreams {
 public:
  SendStreams(Link& link, StagingPipeline& pipeline, SendTags& tags)
      : link_(link), pipeline_(pipeline), tags_(tags) {}

  // The first CTS: streams `granted` bytes; no part crosses a multiple of `border`.
  void begin(Request* request, uint64_t granted, uint64_t border);
  // A further CTS.
  void grant(Request& request, uint64_t granted);
  // The first part of an eager message is sent: streams the rest.
  void begin_eager(Request* request, uint64_t sent);
  // Lets earlier work on device memory end while the receiver has not answered yet.
  void begin_staging(Request* request) {
    pipeline_.begin(request, StagingDirection::kOut, request->op, request->size);
  }
  // Sends a frame from the user's buffer. kTaken: the request is here until UCX releases the part,
  // or has failed.
  enum class Handover { kNoRoom, kTaken, kSent };
  Handover send_zero_copy(Request* request, const Frame& frame);
  // All bytes are on the wire.
  void finish_sent(Request* request);

  bool progress();
  // Ends the zero-copy sends that UCX has released. True when there were some.
  bool end_zero_copies();
  bool idle() const {
    return streams_.empty() && zero_copies_.empty() &&
           !pipeline_.has_stopped(StagingDirection::kOut);
  }

  // Whether UCX or a copy engine accesses the buffer.
  static bool uses_buffer(const Request& request);
  // Ends a request whose buffer is in use: it is in doubt. False: a thread of ours is at work.
  bool give_up(Request* request, const Status& why);
  void remove(Request* request) { streams_.erase(request); }
  // Tells the other side that a message which it knows of will not come.
  void withdraw(const Request& request, const Status& why);
  // Stops a run that serves the other side, without its end.
  void abort(Request& run, const Status& why);
  // The receiver does not take it. True: the request can end; else it does when its buffer is free.
  bool refuse(Request* request, const Status& why);
  void fail_all(const Status& status);

 private:
  bool push(Request* request);
  ByteView next_part(Request& request);
  void stop_staging(Request& request, const Status& why);
  bool end_staging(Request* request);
  void end_zero_copy(Request* request);
  void send_abort(const Request& request, const Status& why);

  Link& link_;
  StagingPipeline& pipeline_;
  SendTags& tags_;
  List<Request, InQueue> streams_;      // more to send
  List<Request, InQueue> zero_copies_;  // a part is in UCX's hands
};

}  // namespace oh
