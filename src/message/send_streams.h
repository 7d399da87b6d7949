// SPDX-License-Identifier: Apache-2.0
//
// SendStreams: sends in parts: through the ring or the socket, as zero-copy sends of UCX, or from
// device memory through the staging pipeline.
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
  // Starts the staging pipeline before the receiver has answered, to wait for earlier work on the
  // memory.
  void begin_staging(Request* request) {
    pipeline_.begin(request, StagingDirection::kOut, request->op, request->size);
  }
  // Sends a frame from the user's buffer. kTaken: the request stays listed until UCX releases the
  // part, or has ended with an error.
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

  // Whether UCX or a copy engine may access the buffer.
  static bool uses_buffer(const Request& request);
  // Ends a request whose buffer is in use, with the buffer in doubt. False: a local thread is
  // working on it.
  bool give_up(Request* request, const Status& why);
  void remove(Request* request) { streams_.erase(request); }
  // Tells the peer that an announced message will not arrive.
  void withdraw(const Request& request, const Status& why);
  // Stops a run that serves the peer's operation; it ends later.
  void abort(Request& run, const Status& why);
  // The receiver has rejected it. True: the caller can end the request; false: it ends when its
  // buffer is free.
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
  List<Request, InQueue> streams_;      // with bytes left to send
  List<Request, InQueue> zero_copies_;  // with a part that UCX holds
};

}  // namespace oh
