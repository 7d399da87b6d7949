// SPDX-License-Identifier: Apache-2.0
#include "message/receiver.h"

#include <cstring>

#include "base/fault.h"
#include "link/tags.h"
#include "path/path.h"

namespace oh {

void Receiver::post(Request* request) {
  matcher_.tidy();
  request->message_tag = request->tag;
  offer_unexpected();
  request->order = matcher_.next_order();
  if (match_unexpected(request)) return;
  request->phase = Phase::kPosted;
  matcher_.insert(request);
}

bool Receiver::get_unexpected(Request* request) {
  request->message_tag = request->tag;
  offer_unexpected();
  return match_unexpected(request, /*must_fit=*/!is_user_tag(request->tag));
}

bool Receiver::match_unexpected(Request* request, bool must_fit) {
  while (Unexpected* message = first_unexpected(request->tag)) {
    if (must_fit && message->length > request->size) return false;
    if (deliver(request, message)) return true;
  }
  return false;
}

void Receiver::offer_unexpected() {
  // Read first: a receive that enters the list later may be missed below.
  const uint64_t era = link_.any_source->era();
  const uint64_t offered = matcher_.offered();
  if (era == offered) return;
  auto is_here = [this](uint64_t tag) { return first_unexpected(tag) != nullptr; };
  while (unexpected_.has_user_messages()) {
    Request* request = link_.any_source->take_new(offered, is_here, link_.peer);
    if (!request) break;
    OH_FAULT_POINT("receiver.taken");
    if (!deliver(request, first_unexpected(request->tag))) repost(request);
  }
  matcher_.set_offered(era);
}

// Removes and returns the receive that a message with this tag matches.
Result<Request*> Receiver::match(TagRx& tag) {
  // Unexpected messages arrived before it (any_source.h).
  if (!link_.any_source->empty()) offer_unexpected();
  return matcher_.match(tag);
}

// Reposts a receive whose message was withdrawn, as if it had never been matched.
void Receiver::repost(Request* request) {
  if (request->any_source) {
    link_.any_source->restore(request);
    link_.any_source->look_again();
    link_.my_bell->ring();
    return;
  }
  request->phase = Phase::kPosted;
  if (!match_unexpected(request)) matcher_.insert(request);
}

// Delivers an unexpected message to a receive. False: its sender has withdrawn it, and it is
// dropped.
bool Receiver::deliver(Request* request, Unexpected* message) {
  if (message->announced) {
    const bool started = start_rts(request, *message);
    const bool lost = !started && message->has_slot && transfers_.ended_with_link(message->offer);
    const uint64_t tag = message->tag;
    unexpected_.drop(message);
    if (lost) lose_rest(matcher_.tag_of(tag));
    return started;
  }
  ++link_.stats.unexpected;
  const bool fits = !refuse_eager(request, message->tag, message->length);
  if (fits && message->received) {
    std::memcpy(BounceCopies::place(*request, message->length), message->bytes(),
                message->received);
  }
  if (message->is_whole()) {
    return_credit(eager_charge(message->length));
    if (fits) finish_whole(request, {message->tag, message->length, /*eager=*/true});
  } else {
    // The rest goes straight into the buffer, or is dropped if it is too long.
    Arrival* arrival = arrivals_.find(message->op);
    arrival->unexpected = nullptr;
    if (fits) Arrivals::bind(arrival, request);
  }
  unexpected_.drop(message);
  return true;
}

// Drops an unexpected message that no receive gets.
void Receiver::drop(Unexpected* message) {
  if (message->is_whole()) {
    return_credit(eager_charge(message->length));
  } else if (!message->announced) {
    arrivals_.drop_rest(*message);
  }
  unexpected_.drop(message);
}

// A message of this tag was lost with its link, and its receive will be: no later message may take
// its place.
void Receiver::lose_rest(TagRx& tag) {
  tag.lost = true;
  while (Unexpected* message = tag.unexpected.front()) drop(message);
}

void Receiver::discard(uint64_t tag) {
  while (Unexpected* message = first_unexpected(tag)) drop(message);
}

void Receiver::return_credit(uint64_t charge) {
  charge_held_ -= charge;
  link_.channel->return_credit(charge);
  const uint64_t due = link_.counted ? link_.counted->take_due() : 0;
  if (due == 0) return;
  Frame frame;
  frame.type = FrameType::kCredit;
  frame.length = due;
  link_.send(frame);
}

// ---- Matched messages -------------------------------------------------------------------------

// Ends a receive that is too small for its message. False: the message fits.
bool Receiver::refuse_longer(Request* request, uint64_t length) {
  if (length <= request->size) return false;
  request->expected = length;
  link_.finish(*request, error(OH_ERR_TRUNCATED,
                               "a message of %llu bytes from %s does not fit into the receive of "
                               "%llu bytes: post a larger one",
                               static_cast<unsigned long long>(length), link_.name.c_str(),
                               static_cast<unsigned long long>(request->size)));
  return true;
}

// The same for a message whose send has ended: a nack reports the failure of a user's send.
bool Receiver::refuse_eager(Request* request, uint64_t tag, uint64_t length) {
  const uint64_t capacity = request->size;
  if (!refuse_longer(request, length)) return false;
  if (!is_user_tag(tag)) return true;
  Frame frame;
  frame.type = FrameType::kNack;
  frame.tag = tag;
  frame.length = capacity;
  frame.aux = static_cast<uint32_t>(OH_ERR_TRUNCATED);
  link_.send(frame);
  return true;
}

void Receiver::finish_whole(Request* request, const Whole& message) {
  const uint64_t length = message.length;
  request->nbytes = length;
  request->message_tag = message.tag;
  request->path = link_.selection->framed_path(length, message.eager);
  if (request->on_device && length > 0) {
    bounce_copies_.add(request);
    return;
  }
  if (!request->internal) link_.stats.count(MetricOp::kRecv, request->path, length);
  link_.finish(*request, {});
}

// Ends a receive whose message has the ID of another message in flight, which a correct sender
// never causes. False: the ID is free.
bool Receiver::refuse_name_in_use(Request* request, uint64_t op) {
  if (!arrivals_.is_name_in_use(op)) return false;
  link_.finish(*request, error(OH_ERR_PROTOCOL, "%s announced two messages under one name",
                               link_.name.c_str()));
  return true;
}

// Starts to receive a message that was announced. False: its sender has withdrawn it.
bool Receiver::start_rts(Request* request, const Rts& rts) {
  request->message_tag = rts.tag;
  if (request->on_device && rts.has_slot && link_.selection->device_way() != DeviceWay::kSegment) {
    if (!transfers_.refuse(rts.offer, OH_ERR_NOT_VIABLE)) return false;
    link_.finish(*request, error(OH_ERR_NOT_VIABLE,
                                 "the link to %s was set up without device memory: a message of "
                                 "%llu bytes cannot reach the receive's device",
                                 link_.name.c_str(), static_cast<unsigned long long>(rts.length)));
    return true;
  }
  if (rts.length > request->size) {
    if (rts.has_slot) {
      if (!transfers_.refuse(rts.offer, OH_ERR_TRUNCATED)) return false;
    } else {
      reject_message(link_, rts.op, OH_ERR_TRUNCATED, request->size);
    }
    refuse_longer(request, rts.length);
    return true;
  }
  if (rts.has_slot && transfers_.copies(*request, rts.offer)) {
    return transfers_.claim(request, /*source=*/false, rts.offer);
  }
  if (!refuse_name_in_use(request, rts.op)) clear_to_send(request, rts);
  return true;
}

void Receiver::clear_to_send(Request* request, const Rts& rts) {
  if (link_.selection->is_staged(request->on_device, rts.length)) {
    Arrivals::bind(arrivals_.begin(rts.op, rts.tag, rts.length, /*charge=*/0), request);
    // A bounce buffer is taken once the sender is ready: one that waits for it would block others.
    pipeline_.begin(request, StagingDirection::kIn, rts.op, rts.length).awaited = rts.not_yet;
    if (request->any_source) link_.serve();
    return;
  }
  // Non-contiguous receives are unpacked frame by frame.
  if (link_.ucx && rts.length > 0 && request->run.blocks().size() <= 1) {
    link_.ucx->targets().post(rts.op, BounceCopies::place(*request, rts.length), 0, rts.length);
  }
  Frame frame;
  frame.type = FrameType::kCts;
  frame.op = rts.op;
  link_.send(frame);
  if (rts.length == 0) return finish_whole(request, {rts.tag, 0, /*eager=*/false});
  Arrivals::bind(arrivals_.begin(rts.op, rts.tag, rts.length, /*charge=*/0), request);
}

Status Receiver::begin_run(Request* run, uint64_t op) {
  if (static_cast<uint32_t>(op) >= kMaxOps || arrivals_.is_name_in_use(op)) {
    return error(OH_ERR_PROTOCOL, "%s names an operation %u", link_.name.c_str(),
                 static_cast<uint32_t>(op));
  }
  clear_to_send(run, {.length = run->size, .op = op});
  return {};
}

// ---- Frames -----------------------------------------------------------------------------------

Status Receiver::on_eager(const Frame& frame) {
  const uint64_t charge = eager_charge(frame.length);
  const uint64_t credit = link_.mine.eager_credit - charge_held_;
  if (frame.payload_size > frame.length || frame.length > link_.mine.eager_credit ||
      charge > credit) {
    return error(OH_ERR_PROTOCOL,
                 "%s sent an eager message of %llu bytes, %zu of them in its first part, with a "
                 "credit of %llu",
                 link_.name.c_str(), static_cast<unsigned long long>(frame.length),
                 frame.payload_size, static_cast<unsigned long long>(credit));
  }
  const bool whole = frame.payload_size == frame.length;
  if (!whole &&
      (static_cast<uint32_t>(frame.op) >= kMaxOps || arrivals_.is_name_in_use(frame.op))) {
    return error(OH_ERR_PROTOCOL, "%s names an operation %u", link_.name.c_str(),
                 static_cast<uint32_t>(frame.op));
  }
  charge_held_ += charge;
  TagRx& tag = matcher_.tag_of(frame.tag);
  if (tag.lost) {
    if (whole) {
      return_credit(charge);
    } else {
      arrivals_.begin(frame.op, frame.tag, frame.length, charge)->received = frame.payload_size;
    }
    return {};
  }
  OH_ASSIGN_OR_RETURN(Request * request,
                      frame.placed ? matcher_.match_in_place(tag, frame.number) : match(tag));
  ++tag.arrived;
  if (request) {
    receive_eager(request, frame);
    return {};
  }
  Unexpected* message = unexpected_.keep(tag.unexpected, frame);
  // A thread may wait for it without a receive, by a probe for example.
  link_.wake_me = true;
  if (whole) {
    unexpected_.name_offer(message);
  } else {
    Arrival* arrival = arrivals_.begin(frame.op, frame.tag, frame.length, charge);
    arrival->received = frame.payload_size;
    arrival->unexpected = message;
  }
  return {};
}

void Receiver::receive_eager(Request* request, const Frame& frame) {
  const uint64_t charge = eager_charge(frame.length);
  Arrival* arrival = nullptr;
  if (frame.payload_size == frame.length) {
    return_credit(charge);
  } else {
    arrival = arrivals_.begin(frame.op, frame.tag, frame.length, charge);
    arrival->received = frame.payload_size;
  }
  if (refuse_eager(request, frame.tag, frame.length)) return;
  if (!frame.placed) frame.copy_payload(BounceCopies::place(*request, frame.length), frame.length);
  if (arrival) {
    Arrivals::bind(arrival, request);
  } else {
    finish_whole(request, {frame.tag, frame.length, /*eager=*/true});
  }
}

Status Receiver::on_data(const Frame& frame) {
  // UCX may have fetched the previous part and delivered this one in the same call.
  if (arrivals_.is_fetching()) (void)progress();
  Arrival* arrival = arrivals_.find(frame.op);
  // Unknown: this side has rejected it, and its reject had not reached the sender.
  if (!arrival) return {};
  if (arrival->withdrawn) {
    return error(OH_ERR_PROTOCOL, "%s sent bytes of a message that it had withdrawn",
                 link_.name.c_str());
  }
  OH_ASSIGN_OR_RETURN(const bool here, arrivals_.take(arrival, frame));
  if (here) {
    advance(arrival, frame.payload_size);
  } else {
    (void)progress();
  }
  return {};
}

bool Receiver::progress() {
  bool any = false;
  while (Arrival* arrival = arrivals_.next_fetched()) {
    any = true;
    arrival->aborted ? abort(arrival) : advance(arrival, arrival->fetched);
  }
  while (Request* request = pipeline_.next_stopped(StagingDirection::kIn)) {
    any = true;
    if (request->staged->withdrawn) {
      std::exchange(request->staged, nullptr)->request = nullptr;
      message_withdrawn(request);
      continue;
    }
    if (!cancel(request, Status(request->staged->failure), /*force=*/true)) break;
  }
  return any;
}

// Accounts for `size` more bytes, stored or dropped.
void Receiver::advance(Arrival* arrival, uint64_t size) {
  if (!arrivals_.advance(arrival, size)) return;
  arrivals_.revoke(*arrival);
  if (arrival->request && !arrival->request->staged) {
    finish_whole(arrival->request, {arrival->tag, arrival->length, /*eager=*/arrival->charge > 0});
  }
  if (arrival->unexpected) unexpected_.name_offer(arrival->unexpected);
  // An unexpected message holds its credit until a receive takes it.
  if (!arrival->unexpected && arrival->charge) return_credit(arrival->charge);
  arrivals_.end(arrival);
}

Status Receiver::on_rts(const Frame& frame) {
  const bool has_slot = frame.slot != kNoSlot;
  if ((has_slot && (frame.slot >= kSlots || !link_.segment)) ||
      static_cast<uint32_t>(frame.op) >= kMaxOps ||
      unexpected_.size() > link_.mine.max_pending + kMaxOps) {
    return error(OH_ERR_PROTOCOL, "%s is ready to send with slot %u and operation %u",
                 link_.name.c_str(), frame.slot, static_cast<uint32_t>(frame.op));
  }
  TagRx& tag = matcher_.tag_of(frame.tag);
  if (tag.lost) return {};
  OH_ASSIGN_OR_RETURN(Request * request, match(tag));
  ++tag.arrived;
  const Rts rts{.tag = frame.tag,
                .length = frame.length,
                .op = frame.op,
                .has_slot = has_slot,
                .not_yet = (frame.flags & kNotYet) != 0,
                .offer = {frame.slot, frame.number, frame.address, frame.region, frame.length}};
  if (!request) {
    unexpected_.keep(tag.unexpected, rts);
    link_.wake_me = true;
  } else if (!start_rts(request, rts)) {
    const bool lost = has_slot && transfers_.ended_with_link(rts.offer);
    // No receive behind a wildcard is offered, so no number has to be kept.
    if (lost || request->any_source || request->tag == OH_ANY_TAG) {
      repost(request);
      if (lost) lose_rest(tag);
      return {};
    }
    // The sender has withdrawn it, and sends an abort behind all messages that it had numbered by
    // then. Until the abort arrives the receive keeps its number: later receives that were offered
    // may have their messages already, and those in between must not move up.
    if (refuse_name_in_use(request, rts.op)) return {};
    Arrival* arrival = arrivals_.begin(rts.op, rts.tag, rts.length, /*charge=*/0);
    arrival->withdrawn = true;
    Arrivals::bind(arrival, request);
  }
  return {};
}

void Receiver::on_ready(const Frame& frame) {
  Arrival* arrival = arrivals_.find(frame.op);
  if (arrival && arrival->request && arrival->request->staged) {
    arrival->request->staged->awaited = false;
    pipeline_.look_at(*arrival->request->staged);
  } else if (Unexpected* message = arrival ? nullptr : unexpected_.find_announced(frame.op)) {
    message->not_yet = false;
  }
}

void Receiver::on_abort(const Frame& frame) {
  if (frame.flags & kOffer) {
    // The receive of a batch was cancelled before its offer was handled.
    Unexpected* offer = unexpected_.find_offer(frame.op);
    if (offer && offer->tag == frame.tag) drop(offer);
    return;
  }
  (void)progress();  // a part whose fetch is over
  if (Arrival* arrival = arrivals_.find(frame.op)) {
    if (arrival->request && arrival->request->is_run()) {
      arrival->request->status = link_.refusal(frame_failure(frame));
    }
    // A part that the sender handed to UCX is still in flight.
    arrival->aborted = arrival->in_flight != nullptr;
    if (!arrival->aborted) abort(arrival);
    return;
  }
  if (Unexpected* message = unexpected_.find_announced(frame.op)) unexpected_.drop(message);
}

// Ends a message that its sender has withdrawn.
void Receiver::abort(Arrival* arrival) {
  arrivals_.revoke(*arrival);
  Request* request = arrival->request;
  if (arrival->unexpected) unexpected_.drop(arrival->unexpected);
  if (arrival->charge) return_credit(arrival->charge);
  arrivals_.end(arrival);
  if (request && request->staged) {
    pipeline_.withdraw(*request->staged);
  } else if (request) {
    message_withdrawn(request);
  }
}

// The message of a receive was withdrawn and will not arrive.
void Receiver::message_withdrawn(Request* request) {
  if (request->is_run()) return link_.finish(*request, Status(request->status));
  if (is_user_tag(request->tag)) return repost(request);
  // The receiver of an offer sizes its buffer by probe(), and the next offer may be longer.
  link_.finish(*request,
               error(OH_ERR_RETIRED, "%s took its message of %llu bytes back", link_.name.c_str(),
                     static_cast<unsigned long long>(request->expected)));
}

// ---- The end ----------------------------------------------------------------------------------

bool Receiver::cancel(Request* request, const Status& status, bool force) {
  StagedCopy* staged = request->staged.get();
  if (staged && !staged->is_quiet() && (!force || staged->busy)) {
    if (force) pipeline_.stop(*staged, status);
    return false;
  }
  if (request->phase == Phase::kStream) {
    // After a CTS the bytes may be in flight, and the sender would not learn that they are dropped.
    if (!force && !(staged && staged->begun == 0)) return false;
    arrivals_.reject(request, status);
    request->in_flight || staged ? link_.leave_in_doubt(*request, status)
                                 : link_.finish(*request, status);
    return true;
  }
  // The whole message has arrived, and the sender has finished.
  if (force && bounce_copies_.cancel(request, status)) return true;
  if (request->phase != Phase::kPosted || !matcher_.cancel(request, force)) return false;
  link_.finish(*request, status);
  return true;
}

bool Receiver::stop(Request* run, const Status& why) {
  // Nothing more is written into host memory; the caller waits for what UCX fetches.
  if (cancel(run, why, /*force=*/!run->staged)) return true;
  if (run->staged && run->staged->failure.ok()) pipeline_.stop(*run->staged, why);
  return false;
}

void Receiver::fail_all(const Status& status) {
  matcher_.fail_all(status);
  arrivals_.fail_all(status);
  // Whole messages stay for later receives. Messages whose bytes are still at the sender are lost,
  // and so are the later ones of their tag: a receive must not get one of those instead.
  matcher_.for_each_tag([&](TagRx& tag) {
    bool lost = false;
    for (Unexpected* message = tag.unexpected.front(); message;) {
      Unexpected* next = tag.unexpected.next(message);
      lost = lost || message->announced;
      if (lost) unexpected_.drop(message);
      message = next;
    }
  });
}

}  // namespace oh
