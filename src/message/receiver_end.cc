// SPDX-License-Identifier: Apache-2.0
//
// Receives that are taken back, and the end of all.
#include "message/receiver.h"

namespace oh {

bool Receiver::cancel(Request* request, const Status& status, bool force) {
  StagedCopy* staged = request->staged.get();
  if (staged && !staged->is_quiet() && (!force || staged->busy)) {
    if (force) pipeline_.stop(*staged, status);
    return false;
  }
  if (request->phase == Phase::kStream) {
    // What has been let go may be on its way already, and its sender would not hear that it is
    // dropped.
    if (!force && !(staged && staged->begun == 0)) return false;
    // The message is here in part: what still comes is dropped.
    if (Incoming* incoming = incoming_of(request)) {
      revoke(*incoming);
      // What is in flight ends without it.
      if (incoming->in_flight) request->in_flight = incoming->in_flight;
      incoming->request = nullptr;
      Frame frame;
      frame.type = FrameType::kReject;
      frame.op = incoming->op;
      frame.aux = static_cast<uint32_t>(status.code());
      frame.length = request->size;
      link_.send(frame);
      // Nothing of it was let go, so nothing comes.
      if (staged && staged->begun == 0) end_incoming(incoming);
    }
    request->in_flight || staged ? link_.leave_in_doubt(*request, status)
                                 : link_.finish(*request, status);
    return true;
  }
  if (bounce_copies_.cancel(request, status)) return true;
  if (request->phase != Phase::kPosted) return false;
  if (request->tag == OH_ANY_TAG) {
    any_tag_.erase(request);
    --posted_count_;
  } else {
    TagRx& tag = tag_of(request->tag);
    bool free = withdraw_from(tag, request);
    // Over UCX its message and all before it are in the inbox: whoever looks there finds it.
    if (!free && force && !link_.ucx) {
      free = request->phase == Phase::kPosted && take_back(request);
    }
    if (free) take_posted(tag, request);
    renumber(tag);
    if (!free) return false;
  }
  link_.finish(*request, status);
  return true;
}

// What comes for a receive; null: nothing yet.
Receiver::Incoming* Receiver::incoming_of(const Request* request) const {
  Incoming* named = find_incoming(request->theirs);
  if (named && named->request == request) return named;
  // One that is being fetched may have lost its name to a later message.
  for (Incoming* incoming : fetching_) {
    if (incoming->request == request) return incoming;
  }
  return nullptr;
}

bool Receiver::stop(Request* run, const Status& why) {
  // Into host memory nothing is written any more; what UCX fetches is waited for by the caller.
  if (cancel(run, why, /*force=*/!run->staged)) return true;
  if (run->staged && run->staged->failure.ok()) pipeline_.stop(*run->staged, why);
  return false;
}

void Receiver::fail_all(const Status& status) {
  while (Request* request = any_tag_.pop_front()) link_.finish(*request, status);
  while (TagRx* tag = posting_.pop_front()) {
    while (Request* request = tag->posted.pop_front()) link_.finish(*request, status);
  }
  for (Incoming* incoming : fetching_) {
    // A later message has its name.
    if (incoming_[static_cast<uint32_t>(incoming->op)] != incoming) incoming_.push_back(incoming);
  }
  for (Incoming*& incoming : incoming_) {
    if (incoming) revoke(*incoming);
    if (incoming && incoming->request) {
      incoming->request->in_flight = incoming->in_flight;
      bool flies =
          incoming->request->staged || (incoming->in_flight && !incoming->in_flight->is_over());
      flies ? link_.leave_in_doubt(*incoming->request, status)
            : link_.finish(*incoming->request, status);
    }
    if (incoming && incoming->early) incoming->early->ready_to_send = true;  // the rest is not here
    if (incoming) incoming_pool_.release(std::exchange(incoming, nullptr));
  }
  fetching_.clear();
  // Whole messages stay for receives to come. Those whose bytes are still at the sender are lost,
  // and so is what follows them: a receive must not get a later message of its tag instead.
  tags_.for_each([&](TagRx& tag) {
    bool lost = false;
    for (Early* early = tag.early.front(); early;) {
      Early* next = tag.early.next(early);
      lost = lost || early->ready_to_send;
      if (lost) forget(early);
      early = next;
    }
  });
  posted_count_ = 0;
}

}  // namespace oh
