// SPDX-License-Identifier: Apache-2.0
//
// What arrives for the receiver.
#include <algorithm>

#include "base/wire.h"
#include "message/receiver.h"
#include "message/sender.h"

namespace oh {

Status Receiver::on_eager(const Frame& frame) {
  uint64_t charge = eager_charge(frame.length);
  uint64_t credit = link_.mine.eager_credit - charge_held_;
  if (frame.payload_size > frame.length || frame.length > link_.mine.eager_credit ||
      charge > credit) {
    return error(OH_ERR_PROTOCOL,
                 "%s sent an eager message of %llu bytes, %zu of them in its first part, with a "
                 "credit of %llu",
                 link_.name.c_str(), static_cast<unsigned long long>(frame.length),
                 frame.payload_size, static_cast<unsigned long long>(credit));
  }
  bool whole = frame.payload_size == frame.length;
  if (!whole && (static_cast<uint32_t>(frame.op) >= kMaxOps || is_name_in_use(frame.op))) {
    return error(OH_ERR_PROTOCOL, "%s names an operation %u", link_.name.c_str(),
                 static_cast<uint32_t>(frame.op));
  }
  charge_held_ += charge;
  TagRx& tag = tag_of(frame.tag);
  if (tag.lost) {
    if (whole) {
      give_credit_back(charge);
    } else {
      begin_incoming(frame.op, frame.tag, frame.length, charge)->received = frame.payload_size;
    }
    return {};
  }
  OH_ASSIGN_OR_RETURN(Request * request,
                      frame.placed ? match_in_place(tag, frame.number) : match(tag));
  ++tag.arrived;

  if (request && whole) {
    give_credit_back(charge);
    if (refuse_eager(request, frame.tag, frame.length)) return {};
    if (!frame.placed) {
      frame.copy_payload(BounceCopies::place(*request, frame.length), frame.length);
    }
    finish_whole(request, {frame.tag, frame.length, /*early=*/true});
    return {};
  }
  if (request) {
    Incoming* incoming = begin_incoming(frame.op, frame.tag, frame.length, charge);
    incoming->received = frame.payload_size;
    if (refuse_eager(request, frame.tag, frame.length)) return {};
    if (!frame.placed) {
      frame.copy_payload(BounceCopies::place(*request, frame.length), frame.length);
    }
    continue_into(incoming, request);
    return {};
  }
  Early* early = keep_early(tag, frame);
  if (frame.length > sizeof(early->small)) early->large.reset(new uint8_t[frame.length]);
  frame.copy_payload(early->bytes(), frame.length);
  early->received = frame.payload_size;
  if (!whole) {
    Incoming* incoming = begin_incoming(frame.op, frame.tag, frame.length, charge);
    incoming->received = frame.payload_size;
    incoming->early = early;
    return {};
  }
  name_offer(early);
  return {};
}

Receiver::Early* Receiver::keep_early(TagRx& tag, const Frame& frame) {
  Early* early = early_pool_.acquire();
  early->tag = frame.tag;
  early->length = frame.length;
  early->op = frame.op;
  early->ready_to_send = false;
  early->has_slot = false;
  early->received = 0;
  tag.early.push_back(early);
  if (is_user_tag(frame.tag)) arrivals_.push_back(early);
  // Somebody may wait for an offer, with no receive that would end.
  if (!is_user_tag(frame.tag)) link_.wake_me = true;
  ++early_count_;
  return early;
}

Status Receiver::on_data(const Frame& frame) {
  // UCX may have fetched the part before and delivered this one at once.
  if (!fetching_.empty()) (void)progress();
  Incoming* incoming = find_incoming(frame.op);
  // Not there: we rejected it, and the sender did not know yet.
  if (!incoming) return {};
  if (frame.address != incoming->received ||
      frame.payload_size > incoming->length - incoming->received) {
    return error(OH_ERR_PROTOCOL, "%s sent %zu bytes at %llu of a message of %llu, %llu are here",
                 link_.name.c_str(), frame.payload_size,
                 static_cast<unsigned long long>(frame.address),
                 static_cast<unsigned long long>(incoming->length),
                 static_cast<unsigned long long>(incoming->received));
  }
  // An honest sender waits for the end of a part that is fetched.
  if (incoming->in_flight || (frame.remote && !incoming->request && incoming->early)) {
    return error(OH_ERR_PROTOCOL, "%s sent a part beside another one", link_.name.c_str());
  }
  OH_ASSIGN_OR_RETURN(uint8_t* sink, place_of(*incoming, frame));
  if (frame.remote && sink) {
    incoming->in_flight = link_.ucx->fetch(frame, sink);
    incoming->fetched = frame.payload_size;
    fetching_.push_back(incoming);
    (void)progress();
    return {};
  }
  if (sink && !frame.placed) frame.copy_payload(sink, incoming->length);
  advance(incoming, frame.payload_size);
  return {};
}

// Where the frame's bytes go; null: nowhere.
Result<uint8_t*> Receiver::place_of(Incoming& incoming, const Frame& frame) {
  Request* request = incoming.request;
  if (request && request->staged) {
    uint8_t* place = StagingPipeline::place(*request->staged, frame.address, frame.payload_size);
    if (place) return place;
    return error(OH_ERR_PROTOCOL, "%s sent %zu bytes at %llu, which it was not told to",
                 link_.name.c_str(), frame.payload_size,
                 static_cast<unsigned long long>(frame.address));
  }
  if (request && request->is_run()) {
    std::span<uint8_t> place = request->run.at(frame.address);
    if (frame.payload_size <= place.size()) return place.data();
    return error(OH_ERR_PROTOCOL, "%s sent %zu bytes at %llu, where a block has %zu left",
                 link_.name.c_str(), frame.payload_size,
                 static_cast<unsigned long long>(frame.address), place.size());
  }
  if (request) return BounceCopies::place(*request, incoming.length) + frame.address;
  return incoming.early ? incoming.early->bytes() + frame.address : nullptr;
}

bool Receiver::progress() {
  bool any = false;
  for (size_t i = 0; i < fetching_.size();) {
    Incoming* incoming = fetching_[i];
    if (!incoming->in_flight->is_over()) {
      ++i;
      continue;
    }
    any = true;
    fetching_.erase(fetching_.begin() + static_cast<ptrdiff_t>(i));
    std::shared_ptr<InFlight> in_flight = std::move(incoming->in_flight);
    Status broken;
    if (in_flight->code != ucx::kOk) broken = link_.ucx->broken_by(*in_flight);
    if (!broken.ok() && incoming->request) {
      Request* request = std::exchange(incoming->request, nullptr);
      Status lost =
          error(OH_ERR_PEER_LOST, "UCX gave up fetching a message of %llu bytes from %s: %s",
                static_cast<unsigned long long>(incoming->length), link_.name.c_str(),
                broken.text().c_str());
      request->staged ? pipeline_.stop(*request->staged, lost) : link_.finish(*request, lost);
    }
    incoming->aborted ? abort(incoming) : advance(incoming, incoming->fetched);
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

// So many more bytes of it are here, or are dropped.
void Receiver::advance(Incoming* incoming, uint64_t size) {
  incoming->received += size;
  if (incoming->early) incoming->early->received = incoming->received;
  StagedCopy* staged = incoming->request ? incoming->request->staged.get() : nullptr;
  if (staged) staged->there = incoming->received;
  if (incoming->received < incoming->length) return;

  revoke(*incoming);
  if (incoming->request && !staged) {
    finish_whole(incoming->request,
                 {incoming->tag, incoming->length, /*early=*/incoming->charge > 0});
  }
  if (incoming->early) name_offer(incoming->early);
  // The credit of an early message is its receive's to give back.
  if (!incoming->early && incoming->charge) give_credit_back(incoming->charge);
  end_incoming(incoming);
}

Status Receiver::on_rts(const Frame& frame) {
  bool has_slot = frame.slot != kNoSlot;
  if ((has_slot && (frame.slot >= kSlots || !link_.segment)) ||
      static_cast<uint32_t>(frame.op) >= kMaxOps ||
      early_count_ > link_.mine.max_pending + kMaxOps) {
    return error(OH_ERR_PROTOCOL, "%s is ready to send with slot %u and operation %u",
                 link_.name.c_str(), frame.slot, static_cast<uint32_t>(frame.op));
  }
  TagRx& tag = tag_of(frame.tag);
  if (tag.lost) return {};
  OH_ASSIGN_OR_RETURN(Request * request, match(tag));
  ++tag.arrived;
  Early rts;
  Early* kept = request ? &rts : keep_early(tag, frame);
  kept->tag = frame.tag;
  kept->length = frame.length;
  kept->op = frame.op;
  kept->ready_to_send = true;
  kept->has_slot = has_slot;
  kept->not_yet = (frame.flags & kNotYet) != 0;
  kept->offer = {frame.slot, frame.number, frame.address, frame.region, frame.length};
  if (!request) name(announced_, kept, frame.op);
  if (request && !start_rts(request, rts)) {
    repost(request);
    if (has_slot && transfers_.ended_with_link(rts.offer)) lose_rest(tag);
  }
  return {};
}

// A receive whose message was withdrawn waits again, as if it had never been matched.
void Receiver::repost(Request* request) {
  if (request->any_source) {
    link_.any_source->restore(request);
    link_.any_source->look_again();
    link_.my_bell->ring();
    return;
  }
  request->phase = Phase::kPosted;
  if (!match_early(request)) insert_posted(request);
}

// The receive of a batch was given up before its offer was looked at.
void Receiver::drop_offer(const Frame& frame) {
  Early* early = find(offers_, frame.op);
  if (!early || early->tag != frame.tag) return;
  give_credit_back(eager_charge(early->length));
  forget(early);
}

void Receiver::on_abort(const Frame& frame) {
  if (frame.flags & kOffer) return drop_offer(frame);
  (void)progress();  // a part whose fetch is over
  if (Incoming* incoming = find_incoming(frame.op)) {
    if (incoming->request && incoming->request->is_run()) {
      incoming->request->status = link_.refusal(frame_failure(frame));
    }
    // A part that it handed over is still on its way.
    incoming->aborted = incoming->in_flight != nullptr;
    if (!incoming->aborted) abort(incoming);
    return;
  }
  if (Early* early = find(announced_, frame.op)) forget(early);
}

// Its sender has taken it back.
void Receiver::abort(Incoming* incoming) {
  revoke(*incoming);
  Request* request = incoming->request;
  if (incoming->early) forget(incoming->early);
  if (incoming->charge) give_credit_back(incoming->charge);
  end_incoming(incoming);
  if (request && request->staged) {
    pipeline_.withdraw(*request->staged);
  } else if (request) {
    message_withdrawn(request);
  }
}

// Of two with one name, which no honest sender has, the later one is found.
void Receiver::name(Names& names, Early* early, uint64_t op) {
  const auto index = static_cast<uint32_t>(op);
  if (index >= kMaxOps) return;
  if (index >= names.size()) names.resize(index + 1, nullptr);
  early->op = op;
  names[index] = early;
}

Receiver::Early* Receiver::find(const Names& names, uint64_t op) {
  const auto index = static_cast<uint32_t>(op);
  Early* early = index < names.size() ? names[index] : nullptr;
  return early && early->op == op ? early : nullptr;
}

void Receiver::drop_name(Names& names, const Early* early) {
  const auto index = static_cast<uint32_t>(early->op);
  if (index < names.size() && names[index] == early) names[index] = nullptr;
}

// An offer of a batch begins with the name of the receive.
void Receiver::name_offer(Early* early) {
  if (!is_offer_tag(early->tag) || early->length < sizeof(uint64_t)) return;
  Reader reader({early->bytes(), early->length});
  name(offers_, early, reader.u64());
}

void Receiver::on_ready(const Frame& frame) {
  Incoming* incoming = find_incoming(frame.op);
  if (incoming && incoming->request && incoming->request->staged) {
    incoming->request->staged->awaited = false;
    pipeline_.look_at(*incoming->request->staged);
  } else if (Early* early = incoming ? nullptr : find(announced_, frame.op)) {
    early->not_yet = false;
  }
}

// The message of a receive will not come.
void Receiver::message_withdrawn(Request* request) {
  if (request->is_run()) return link_.finish(*request, Status(request->status));
  if (is_user_tag(request->tag)) return repost(request);
  // Somebody measures before he receives, and the next one may be longer.
  link_.finish(*request,
               error(OH_ERR_RETIRED, "%s took its message of %llu bytes back", link_.name.c_str(),
                     static_cast<unsigned long long>(request->expected)));
}

void Receiver::discard(uint64_t tag) {
  while (Early* early = first_early(tag)) {
    const bool whole = early->received == early->length;
    if (!early->ready_to_send && whole) give_credit_back(eager_charge(early->length));
    // The rest goes nowhere.
    if (!early->ready_to_send && !whole) find_incoming(early->op)->early = nullptr;
    forget(early);
  }
}

// The sender counts from zero again: so do we, and advertise anew. Tags without receives follow
// when they are used next.
Status Receiver::on_epoch(const Frame& frame) {
  epoch_ = frame.aux;
  ++epochs_;
  for (TagRx* tag = posting_.front(); tag;) {
    TagRx* next = posting_.next(tag);
    while (tag->posted.front() && !withdraw_from(*tag, tag->posted.front())) {
      // Claimed before the epoch ended: that one has left the list. Over UCX what was put in place
      // before the epoch was handled before it, too.
      if (!link_.ucx) continue;
      return error(OH_ERR_PROTOCOL, "%s began epoch %u and sent a message of the one before",
                   link_.name.c_str(), frame.aux);
    }
    start_epoch(*tag);
    renumber(*tag);
    tag = next;
  }
  tidy();
  return {};
}

// ---- Messages in parts ------------------------------------------------------------------------

Receiver::Incoming* Receiver::begin_incoming(uint64_t op, uint64_t tag, uint64_t length,
                                             uint64_t charge) {
  auto index = static_cast<uint32_t>(op);
  if (index >= incoming_.size()) incoming_.resize(index + 1, nullptr);
  Incoming* incoming = incoming_pool_.acquire();
  *incoming = Incoming{};
  incoming->op = op;
  incoming->tag = tag;
  incoming->length = length;
  incoming->charge = charge;
  incoming_[index] = incoming;
  return incoming;
}

// Whether another message is under way under that name, which no honest sender does.
bool Receiver::is_name_in_use(uint64_t op) const {
  auto index = static_cast<uint32_t>(op);
  if (index >= incoming_.size() || !incoming_[index]) return false;
  // One that is still being fetched may be over at its sender.
  return !incoming_[index]->in_flight || incoming_[index]->op == op;
}

Receiver::Incoming* Receiver::find_incoming(uint64_t op) const {
  auto index = static_cast<uint32_t>(op);
  if (index >= incoming_.size() || !incoming_[index]) return nullptr;
  return incoming_[index]->op == op ? incoming_[index] : nullptr;
}

void Receiver::end_incoming(Incoming* incoming) {
  Incoming*& named = incoming_[static_cast<uint32_t>(incoming->op)];
  if (named == incoming) named = nullptr;
  incoming_pool_.release(incoming);
}

}  // namespace oh
