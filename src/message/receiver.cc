// SPDX-License-Identifier: Apache-2.0
//
// Matching of messages and receives; receiver_frames.cc has what arrives.
#include "message/receiver.h"

#include <algorithm>
#include <cstring>

#include "base/fault.h"
#include "link/memory_exchange.h"
#include "message/sender.h"

namespace oh {

void Receiver::post(Request* request) {
  tidy();
  request->message_tag = request->tag;
  offer_early();
  request->order = {offered_, ++serial_};
  if (match_early(request)) return;
  request->phase = Phase::kPosted;
  insert_posted(request);
}

// Forgets tags without messages and receives once there are many.
void Receiver::tidy() {
  if (tags_.size() < tidy_at_) return;
  tags_.for_each([this](TagRx& tag) { enter_epoch(tag); });
  tags_.drop_idle();
  tidy_at_ = std::max(kTidyAt, 2 * tags_.size());
}

bool Receiver::post_early(Request* request) {
  request->message_tag = request->tag;
  offer_early();
  return match_early(request, /*must_fit=*/!is_user_tag(request->tag));
}

void Receiver::advertise_posted(Request* request) {
  if (request->phase != Phase::kPosted || !may_advertise(request)) return;
  TagRx& tag = tag_of(request->tag);
  if (request != tag.posted.back()) return;  // another thread was faster: its number is not known
  advertise(tag, request, tag.arrived + static_cast<uint32_t>(tag.posted.size()) - 1);
}

// Into its list, by the order of posting: a receive whose message was withdrawn comes back to its
// former place.
void Receiver::insert_posted(Request* request) {
  TagRx* tag = request->tag == OH_ANY_TAG ? nullptr : &tag_of(request->tag);
  List<Request, InPosted>& list = tag ? tag->posted : any_tag_;
  if (tag && list.empty()) posting_.push_back(tag);
  Request* later = nullptr;
  for (Request* other = list.back(); other && request->order.before(other->order);
       other = list.previous(other)) {
    later = other;
  }
  list.insert_before(later, request);
  ++posted_count_;
}

bool Receiver::match_early(Request* request, bool must_fit) {
  while (Early* early = first_early(request->tag)) {
    if (must_fit && early->length > request->size) return false;
    if (deliver(request, early)) return true;
  }
  return false;
}

Receiver::TagRx* Receiver::watch(uint64_t tag) {
  if (!link_.ring || !any_tag_.empty() || !link_.any_source->empty()) return nullptr;
  TagRx* entry = tags_.find(tag);
  bool ready = entry && entry->epochs == epochs_ && entry->posted.empty() && entry->early.empty() &&
               !entry->lost;
  return ready ? entry : nullptr;
}

bool Receiver::take_next(TagRx& tag, uint8_t* data, size_t capacity, Received* received) {
  size_t size;
  bool given_back;
  if (!link_.ring->take_short(tag.tag, data, capacity, &size, &given_back)) return false;
  link_.wake_them = link_.wake_them || given_back;
  ++tag.arrived;
  link_.ring->return_credit(eager_charge(size));
  *received = {size, tag.tag, link_.framed_path(size, /*early=*/true)};
  link_.stats.count_received(received->path, size);
  link_.flight.note(OpKind::kRecv, received->path, tag.tag, size);
  return true;
}

bool Receiver::take_now(Request* request) {
  if (request->on_device) return false;
  TagRx* tag = watch(request->tag);
  if (!tag || !link_.ring->ready() || link_.ring->skip_pad()) return false;
  Received received;
  if (!take_next(*tag, request->data, request->size, &received)) return false;
  link_.finish_posted(*request, received.tag, received.size);
  return true;
}

bool Receiver::take_posted() {
  RingChannel::Short next;
  if (!any_tag_.empty() || !link_.any_source->empty() || !link_.ring->next_short(&next)) {
    return false;
  }
  TagRx* tag = tags_.find(next.tag);
  if (!tag || tag->epochs != epochs_ || tag->lost) return false;
  Request* request = tag->posted.front();
  if (!request || request->transfer || request->on_device || next.size > request->size) {
    return false;
  }
  OH_FAULT_POINT("peer.frame");
  const bool given_back = link_.ring->take(next, request->data);
  link_.wake_them = link_.wake_them || given_back;
  ++tag->arrived;
  link_.ring->return_credit(eager_charge(next.size));
  take_posted(*tag, request);
  link_.finish_short(*request, next.tag, next.size);
  return true;
}

void Receiver::offer_early() {
  // Read first: a receive that enters the list meanwhile may not be seen below.
  const uint64_t era = link_.any_source->era();
  if (era == offered_) return;
  auto is_here = [this](uint64_t tag) { return first_early(tag) != nullptr; };
  while (!arrivals_.empty()) {
    Request* request = link_.any_source->take_new(offered_, is_here, link_.peer);
    if (!request) break;
    OH_FAULT_POINT("receiver.taken");
    if (!deliver(request, first_early(request->tag))) repost(request);
  }
  offered_ = era;
}

Receiver::Early* Receiver::first_early(uint64_t tag) {
  if (tag == OH_ANY_TAG) return arrivals_.front();
  TagRx* entry = tags_.find(tag);
  return entry ? entry->early.front() : nullptr;
}

// The receive that a message with this tag goes to: the one posted first. It is taken off its list.
Result<Request*> Receiver::match(TagRx& tag) {
  // What came before it goes first (any_source.h).
  if (!link_.any_source->empty()) offer_early();
  OH_FAULT_POINT("receiver.match");
  Request* request;
  while ((request = tag.posted.front()) && request->transfer &&
         !transfers_.withdraw(request->transfer)) {
    // An earlier message of this tag is being copied into it: it has left the list.
  }
  Request* any_tag = is_user_tag(tag.tag) ? any_tag_.front() : nullptr;
  bool any_tag_first = any_tag && (!request || any_tag->order.before(request->order));
  Request* first = any_tag_first ? any_tag : request;
  if (is_user_tag(tag.tag) && !link_.any_source->empty()) {
    Request* other =
        link_.any_source->take(tag.tag, first ? &first->order : nullptr, offered_, link_.peer);
    if (other) {
      OH_FAULT_POINT("receiver.taken");
      return other;
    }
  }
  if (any_tag_first) {
    any_tag_.erase(first);
    --posted_count_;
  } else if (first) {
    // Messages come in the order of their numbers: this one would have been in place.
    if (!take_back(first)) {
      return error(OH_ERR_PROTOCOL, "%s put message %u with tag %llu before an earlier one",
                   link_.name.c_str(), first->number, static_cast<unsigned long long>(tag.tag));
    }
    take_posted(tag, first);
  }
  return first;
}

void Receiver::on_claimed(Request* request) {
  TagRx& tag = tag_of(request->tag);
  take_posted(tag, request);
  ++tag.arrived;
}

// The receive that a message was put into already.
Result<Request*> Receiver::match_in_place(TagRx& tag, uint32_t number) {
  Request* request = tag.posted.front();
  while (request && !(request->in_place && request->number == number)) {
    request = tag.posted.next(request);
  }
  if (!request) {
    return error(OH_ERR_PROTOCOL, "%s put message %u with tag %llu where no receive is",
                 link_.name.c_str(), number, static_cast<unsigned long long>(tag.tag));
  }
  request->in_place = false;
  link_.ucx->targets().revoke_message(tag.tag, number, /*taken=*/true);
  take_posted(tag, request);
  return request;
}

// Off its list, once nothing is put into it any more.
void Receiver::take_posted(TagRx& tag, Request* request) {
  tag.posted.erase(request);
  if (tag.posted.empty()) posting_.erase(&tag);
  --posted_count_;
}

// Gives an early message to a receive. False when its sender has withdrawn it: it is forgotten.
bool Receiver::deliver(Request* request, Early* early) {
  if (early->ready_to_send) {
    bool started = start_rts(request, *early);
    bool lost = !started && early->has_slot && transfers_.ended_with_link(early->offer);
    TagRx& tag = tags_.get(early->tag);
    forget(early);
    if (lost) lose_rest(tag);
    return started;
  }
  ++link_.stats.unexpected;
  bool whole = early->received == early->length;
  bool fits = !refuse_eager(request, early->tag, early->length);
  if (fits && early->received) {
    std::memcpy(BounceCopies::place(*request, early->length), early->bytes(), early->received);
  }
  if (whole) {
    give_credit_back(eager_charge(early->length));
    if (fits) finish_whole(request, {early->tag, early->length, /*early=*/true});
  } else {
    // The rest goes straight into the buffer, or nowhere when it is too long.
    Incoming* incoming = find_incoming(early->op);
    incoming->early = nullptr;
    if (fits) continue_into(incoming, request);
  }
  forget(early);
  return true;
}

// A message of this tag ended with its link, and its receive will: no later one may take its place.
void Receiver::lose_rest(TagRx& tag) {
  tag.lost = true;
  while (Early* early = tag.early.front()) {
    if (!early->ready_to_send && early->received == early->length) {
      give_credit_back(eager_charge(early->length));
    } else if (!early->ready_to_send) {
      find_incoming(early->op)->early = nullptr;  // the rest goes nowhere
    }
    forget(early);
  }
}

void Receiver::continue_into(Incoming* incoming, Request* request) {
  incoming->request = request;
  request->phase = Phase::kStream;
  request->message_tag = incoming->tag;
  request->theirs = incoming->op;
  request->expected = incoming->length;
}

void Receiver::give_credit_back(uint64_t charge) {
  charge_held_ -= charge;
  link_.channel->return_credit(charge);
}

void Receiver::forget(Early* early) {
  tags_.get(early->tag).early.erase(early);
  if (is_user_tag(early->tag)) arrivals_.erase(early);
  drop_name(announced_, early);
  drop_name(offers_, early);
  --early_count_;
  early->large.reset();
  early_pool_.release(early);
}

// Ends a receive whose message has no room for it.
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

// The same for a message whose send is over: its sender is told apart, if it is the user's.
bool Receiver::refuse_eager(Request* request, uint64_t tag, uint64_t length) {
  uint64_t capacity = request->size;
  if (!refuse_longer(request, length)) return false;
  if (!is_user_tag(tag)) return true;
  Frame frame;
  frame.type = FrameType::kComplaint;
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
  request->path = link_.framed_path(length, message.early);
  if (request->on_device && length > 0) {
    bounce_copies_.add(request);
    return;
  }
  link_.stats.count_received(request->path, length);
  link_.finish(*request, {});
}

// Starts to fetch a message that was announced. False when its sender has withdrawn it.
bool Receiver::start_rts(Request* request, Early& rts) {
  request->message_tag = rts.tag;
  if (request->on_device && rts.has_slot && !link_.device) {
    if (!transfers_.refuse(rts.offer, OH_ERR_NOT_VIABLE)) return false;
    link_.finish(*request, error(OH_ERR_NOT_VIABLE,
                                 "the link to %s was set up without device memory: a message of "
                                 "%llu bytes has no way to the receive's device",
                                 link_.name.c_str(), static_cast<unsigned long long>(rts.length)));
    return true;
  }
  if (rts.length > request->size) {
    if (rts.has_slot) {
      if (!transfers_.refuse(rts.offer, OH_ERR_TRUNCATED)) return false;
    } else {
      Frame frame;
      frame.type = FrameType::kReject;
      frame.op = rts.op;
      frame.aux = static_cast<uint32_t>(OH_ERR_TRUNCATED);
      frame.length = request->size;
      link_.send(frame);
    }
    refuse_longer(request, rts.length);
    return true;
  }
  if (rts.has_slot && transfers_.reachable(*request, rts.offer) &&
      !transfers_.prefers_stream(*request, rts.offer)) {
    return transfers_.claim(request, /*source=*/false, rts.offer);
  }
  if (is_name_in_use(rts.op)) {
    link_.finish(*request, error(OH_ERR_PROTOCOL, "%s announced two messages under one name",
                                 link_.name.c_str()));
    return true;
  }
  let_come(request, rts);
  return true;
}

void Receiver::let_come(Request* request, const Early& rts) {
  if (request->on_device && !link_.segment && rts.length > 0) {
    continue_into(begin_incoming(rts.op, rts.tag, rts.length, /*charge=*/0), request);
    // Lets it come once its sender is ready: a buffer that waits for him would hold others up.
    pipeline_.begin(request, StagingDirection::kIn, rts.op, rts.length).awaited = rts.not_yet;
    if (request->any_source) link_.serve();
    return;
  }
  // Bytes for memory that is apart are put there as they are looked at.
  if (link_.ucx && rts.length > 0 && request->run.blocks().size() <= 1) {
    link_.ucx->targets().post(rts.op, BounceCopies::place(*request, rts.length), 0, rts.length);
  }
  Frame frame;
  frame.type = FrameType::kCts;
  frame.op = rts.op;
  link_.send(frame);
  if (rts.length == 0) return finish_whole(request, {rts.tag, 0, /*early=*/false});
  continue_into(begin_incoming(rts.op, rts.tag, rts.length, /*charge=*/0), request);
}

Status Receiver::begin_run(Request* run, uint64_t op) {
  if (static_cast<uint32_t>(op) >= kMaxOps || is_name_in_use(op)) {
    return error(OH_ERR_PROTOCOL, "%s names an operation %u", link_.name.c_str(),
                 static_cast<uint32_t>(op));
  }
  Early announced;
  announced.op = op;
  announced.length = run->size;
  let_come(run, announced);
  return {};
}

// ---- Adverts ----------------------------------------------------------------------------------

bool Receiver::may_advertise(const Request* request) const {
  if (request->transfer || request->in_place || request->size == 0) return false;
  if (!link_.segment && !link_.ucx) return false;
  if (request->pending()) return false;
  if (request->tag == OH_ANY_TAG) return false;
  if (is_user_tag(request->tag) &&
      (!any_tag_.empty() || link_.any_source->may_match(request->tag))) {
    return false;
  }
  // What is not small is announced first, and small frames go through the inbox anyway.
  if (link_.ucx) return !request->on_device && request->size > link_.granted_inline;
  // A small message from host memory comes early; one from a device never does.
  if (!request->on_device && request->size <= link_.theirs.eager_max) return false;
  return request->on_device || link_.they_reach_us ||
         link_.memory->block_of(request->data, request->size) != 0;
}

void Receiver::advertise(TagRx& tag, Request* request, uint32_t number) {
  if (link_.ucx) {
    request->number = number;
    request->in_place = link_.ucx->targets().post_message(
        tag.tag, {number, epoch_, request->data, request->size, false});
    return;
  }
  Transfer* transfer = transfers_.offer(request, /*source=*/false);
  if (!transfer) return;
  Frame frame;
  frame.type = FrameType::kAdvert;
  frame.tag = tag.tag;
  frame.number = number;
  frame.aux = epoch_;
  frame.length = request->size;
  frame.slot = transfer->index;
  frame.op = transfer->sequence;
  frame.address = transfer->slot->owner_address;
  frame.region = transfer->slot->owner_block;
  // An advert is an offer: without room in the channel it is not made.
  if (!link_.outbox.empty() || !link_.push(frame)) transfers_.withdraw(transfer);
}

// Takes the adverts from the last one down to that of `first` back. False as soon as one of them
// was claimed: the messages before it are under way then.
bool Receiver::withdraw_from(TagRx& tag, Request* first) {
  for (Request* request = tag.posted.back(); request;) {
    Request* previous = tag.posted.previous(request);
    bool last = request == first;
    if (!take_back(request)) return false;
    if (last) break;
    request = previous;
  }
  return true;
}

// False: its message is under way. One that was put in place is in the inbox, and found there.
bool Receiver::take_back(Request* request) {
  if (request->transfer) return transfers_.withdraw(request->transfer);
  if (!request->in_place) return true;
  request->in_place =
      !link_.ucx->targets().revoke_message(request->tag, request->number, /*taken=*/false);
  return !request->in_place;
}

// Advertises what may be advertised and is not, with the numbers as they are now.
void Receiver::renumber(TagRx& tag) {
  uint32_t number = tag.arrived;
  for (Request* request = tag.posted.front(); request; request = tag.posted.next(request)) {
    if (may_advertise(request)) advertise(tag, request, number);
    ++number;
  }
}

}  // namespace oh
