// SPDX-License-Identifier: Apache-2.0
#include "message/sender.h"
#include "link/memory_exchange.h"

#include <algorithm>
#include <utility>

namespace oh {

void Sender::post(Request* request) {
  request->phase = Phase::kQueued;
  request->granted = request->on_device ? 0 : UINT64_MAX;
  request->border = 0;
  ++link_.pending_sends;
  if (queue_.empty() && link_.outbox.empty() && transmit(request)) return;
  queue_.push_back(request);
}

bool Sender::send_now(const uint8_t* data, size_t size, uint64_t tag) {
  uint64_t charge = eager_charge(size);
  if (!queue_.empty() || !link_.outbox.empty() || size > link_.mine.eager_max ||
      size > link_.single_frame || !has_credit(charge)) {
    return false;
  }
  TagTx* entry = tags_.find(tag);
  if (!entry || !entry->adverts.empty()) return false;
  bool sent;
  if (link_.ring) {
    sent = link_.ring->push_short(tag, data, size);
    link_.wake_them = true;
  } else {
    Frame frame;
    frame.type = FrameType::kEager;
    frame.tag = tag;
    frame.length = frame.payload_size = size;
    frame.payload = data;
    sent = link_.push(frame);
  }
  if (!sent) return false;
  ++entry->number;
  charge_used_ += charge;
  link_.stats.count_sent(link_.framed_path(size, /*early=*/true), size);
  link_.flight.note(OpKind::kSend, link_.framed_path(size, /*early=*/true), tag, size);
  return true;
}

bool Sender::progress() {
  bool any = false;
  while (link_.outbox.empty()) {
    Request* request = queue_.pop_front();
    if (!request) break;
    if (!transmit(request)) {
      queue_.push_front(request);
      break;
    }
    any = true;
  }
  // It waited for its producer, which failed.
  while (Request* request = pipeline_.next_stopped(StagingDirection::kOut)) {
    if (request->phase != Phase::kOffered) break;
    end_staging(request);
  }
  for (size_t turns = streams_.size(); turns-- > 0 && link_.outbox.empty();) {
    Request* request = streams_.pop_front();
    uint64_t before = request->moved;
    if (end_staging(request)) {
      any = true;
    } else if (!push_stream(request)) {
      any = any || request->moved != before;
      streams_.push_back(request);
    } else {
      any = true;
    }
  }
  return end_zero_copies() || any;
}

void Sender::finish_sent(Request* request) {
  request->path = link_.framed_path(request->size, request->early);
  request->nbytes = request->size;
  link_.stats.count_sent(request->path, request->size);
  // A put ends when it is there, which the other side says.
  if (request->is_run() && !request->serves_peer() && !request->acknowledged) {
    if (request->staged) std::exchange(request->staged, nullptr)->request = nullptr;
    request->phase = Phase::kDirect;
    return;
  }
  link_.finish(*request, {});
}

// Puts the request on the wire; false when there is no room now.
bool Sender::transmit(Request* request) {
  if (tags_.size() >= kMaxTags && !tags_.find(request->tag)) new_epoch();
  if (epoch_unsaid_) {
    say_epoch();
    if (!link_.outbox.empty()) return false;  // nothing may pass the epoch's frame
  }
  TagTx& tag = tags_.get(request->tag);
  if (!tag.adverts.empty() && use_advert(request, tag)) {
    ++tag.number;
    return true;
  }
  uint64_t charge = eager_charge(request->size);
  // Only copy engines touch device memory: no bytes of it go into a frame.
  bool small = request->size <= link_.mine.eager_max && !(request->on_device && request->size > 0);
  if (small && has_credit(charge)) return transmit_eager(request, tag, charge);
  if (!transmit_rts(request, tag)) return false;
  if (small) ++link_.stats.out_of_credit;
  return true;
}

// Looks at the other side's line only when what is known does not suffice: it is being written
// there.
bool Sender::has_credit(uint64_t charge) {
  if (charge_used_ + charge <= link_.theirs.eager_credit + charge_returned_) return true;
  charge_returned_ = link_.channel->credit_returned();
  return charge_used_ + charge <= link_.theirs.eager_credit + charge_returned_;
}

bool Sender::transmit_eager(Request* request, TagTx& tag, uint64_t charge) {
  Frame frame;
  frame.type = FrameType::kEager;
  frame.tag = request->tag;
  frame.length = request->size;
  frame.number = tag.number;
  frame.aux = epoch_;
  frame.payload = request->data;
  const bool zero_copy = link_.ucx && request->size > link_.granted_inline;
  frame.payload_size =
      std::min<uint64_t>(request->size, zero_copy ? link_.ucx->zero_copy_part(request->size)
                                                  : link_.channel->part_of(request->size));
  bool whole = frame.payload_size == request->size;
  if (!whole) frame.op = request->op = link_.ops.add(request);
  request->early = true;
  const Handover sent = zero_copy           ? send_zero_copy(request, frame)
                        : link_.push(frame) ? Handover::kSent
                                            : Handover::kNoRoom;
  if (sent == Handover::kNoRoom) {
    if (request->op) link_.ops.remove(std::exchange(request->op, 0));
    request->early = false;
    return false;
  }
  ++tag.number;
  charge_used_ += charge;
  if (sent == Handover::kTaken) return true;  // it may even have ended
  if (whole) {
    finish_sent(request);
    return true;
  }
  request->phase = Phase::kStream;
  request->moved = frame.payload_size;
  if (!push_stream(request)) streams_.push_back(request);
  return true;
}

bool Sender::transmit_rts(Request* request, TagTx& tag) {
  Frame frame;
  frame.type = FrameType::kRts;
  frame.tag = request->tag;
  frame.length = request->size;
  // Without a slot the receiver asks for a stream: when all slots are taken, or nobody could use
  // one. A receive on a device uses one whatever our memory is.
  bool direct = link_.segment && request->size > 0 &&
                (request->on_device || link_.their_gpu || link_.they_reach_us ||
                 link_.memory->block_of(request->data, request->size));
  Transfer* transfer = direct ? transfers_.offer(request, /*source=*/true) : nullptr;
  // From device memory nothing is streamed where there are slots: it waits for one.
  if (link_.segment && request->on_device && request->size > 0 && !transfer) return false;
  if (transfer) {
    frame.slot = transfer->index;
    frame.number = transfer->sequence;
    frame.address = transfer->slot->owner_address;
    frame.region = transfer->slot->owner_block;
  }
  if (!link_.segment && request->pending()) frame.flags |= kNotYet;
  frame.op = request->op = link_.ops.add(request);
  if (!link_.push(frame)) {
    if (transfer) transfers_.withdraw(transfer);
    link_.ops.remove(std::exchange(request->op, 0));
    return false;
  }
  ++tag.number;
  request->phase = Phase::kOffered;
  if (frame.flags & kNotYet) begin_staging(request);
  return true;
}

// Copies straight into the receive that was advertised for this message's number, if there is one.
bool Sender::use_advert(Request* request, TagTx& tag) {
  bool claimed = false;
  for (auto advert = tag.adverts.rbegin(); advert != tag.adverts.rend() && !claimed; ++advert) {
    if (advert->number != tag.number || advert->capacity < request->size || request->size == 0 ||
        (!request->on_device && request->size <= link_.mine.eager_max)) {
      continue;
    }
    Transfers::Offer offer = advert->offer;
    offer.length = request->size;
    claimed = transfers_.reachable(*request, offer) &&
              !transfers_.prefers_stream(*request, offer) &&
              transfers_.claim(request, /*source=*/true, offer);
  }
  if (claimed) ++link_.stats.adverts_used;
  // Whatever was advertised for this number or an earlier one is void now.
  std::erase_if(tag.adverts, [&](const Advert& advert) {
    return static_cast<int32_t>(advert.number - tag.number) <= 0;
  });
  return claimed;
}

void Sender::new_epoch() {
  if (std::exchange(epoch_unsaid_, true)) return;
  ++epoch_;
  tags_.for_each([](TagTx& tag) { tag.reset(); });
  tags_.drop_idle();
}

void Sender::say_epoch() {
  epoch_unsaid_ = false;
  Frame frame;
  frame.type = FrameType::kEpoch;
  frame.aux = epoch_;
  link_.send(frame);
}

bool Sender::cancel(Request* request, const Status& status, bool give_up) {
  StagedCopy* staged = request->staged.get();
  if (staged && staged->busy) {
    if (give_up) pipeline_.stop(*staged, status);
    return false;
  }
  if (request->in_flight || (staged && staged->copying())) {
    if (!give_up) return false;
    (request->in_flight ? zero_copies_ : streams_).erase(request);
    if (request->moved < request->size) withdraw(*request, status);
    link_.leave_in_doubt(*request, status);
    return true;
  }
  switch (request->phase) {
    case Phase::kQueued:
      queue_.erase(request);
      break;
    case Phase::kOffered:
      if (request->transfer && !transfers_.withdraw(request->transfer)) return false;
      break;
    case Phase::kStream:
      streams_.erase(request);
      break;
    case Phase::kDirect:
      if (request->is_run()) break;  // it waits for nothing but the answer
      return false;
    default:
      return false;
  }
  if (request->phase != Phase::kQueued) withdraw(*request, status);
  link_.finish(*request, status);
  return true;
}

bool Sender::stop(Request* run, const Status& why) {
  if (cancel(run, why, /*give_up=*/false)) return true;
  if (run->staged && run->staged->failure.ok()) {
    pipeline_.stop(*run->staged, why);
  } else if (!run->staged && run->status.ok()) {
    send_abort(*run, why);
    run->status = why;  // once the channel is through with its buffer
  }
  return false;
}

void Sender::send_abort(const Request& request, const Status& why) {
  Frame frame;
  frame.type = FrameType::kAbort;
  frame.op = request.op;
  frame.aux = static_cast<uint32_t>(why.code());
  link_.send(frame);
}

// Takes back what was announced: the other side is to forget it, and its numbers.
void Sender::withdraw(const Request& request, const Status& why) {
  send_abort(request, why);
  if (!request.is_run()) new_epoch();
}

void Sender::on_cts(const Frame& frame) {
  Request* request = link_.ops.find(frame.op);
  // Not there: it was withdrawn meanwhile, and our abort is on its way.
  if (!request || !request->sends()) return;
  const uint64_t granted = frame.length ? frame.length : UINT64_MAX;
  if (request->phase == Phase::kStream) {
    request->granted = std::max(request->granted, granted);
    if (request->staged) pipeline_.look_at(*request->staged);
  }
  if (request->phase != Phase::kOffered) return;
  if (request->transfer && !transfers_.withdraw(request->transfer)) return;
  request->phase = Phase::kStream;
  request->moved = 0;
  request->granted = granted;
  request->border = frame.address;
  if (request->on_device && !request->staged) begin_staging(request);
  streams_.push_back(request);
}

void Sender::on_reject(const Frame& frame) {
  Request* request = link_.ops.find(frame.op);
  if (!request || !request->sends()) return;
  oh_status code = frame_failure(frame);
  if (request->is_run()) return refuse(request, link_.refusal(code));
  refuse(request,
         error(code,
               "%s did not take the message of %llu bytes with tag %llu: %s (its receive has room "
               "for %llu)",
               link_.name.c_str(), static_cast<unsigned long long>(request->size),
               static_cast<unsigned long long>(request->tag), status_text(code),
               static_cast<unsigned long long>(frame.length)));
}

void Sender::refuse(Request* request, const Status& why) {
  if (request->phase == Phase::kStream) {
    if (request->moved < request->size) send_abort(*request, why);
    if (request->staged) return stop_staging(*request, why);
    if (request->in_flight) {
      request->status = why;  // once it is over
      return;
    }
    streams_.erase(request);
  } else if (request->staged) {
    request->phase = Phase::kStream;
    streams_.push_back(request);
    return stop_staging(*request, why);
  } else if (request->is_run() && request->phase == Phase::kDirect) {
    // All of it is sent.
  } else if (request->phase != Phase::kOffered ||
             (request->transfer && !transfers_.withdraw(request->transfer))) {
    return;
  }
  link_.finish(*request, why);
}

Status Sender::on_advert(const Frame& frame) {
  if (frame.slot >= kSlots || !link_.segment) {
    return error(OH_ERR_PROTOCOL, "%s advertised slot %u", link_.name.c_str(), frame.slot);
  }
  if (frame.aux != epoch_ || epoch_unsaid_) return {};
  // What was advertised with this slot before is over: a receive that was withdrawn.
  if (TagTx* former = tags_.find(advertised_[frame.slot])) {
    std::erase_if(former->adverts,
                  [&](const Advert& advert) { return advert.offer.slot == frame.slot; });
  }
  // An advert may be left unused; the message is announced then.
  if (tags_.size() >= kMaxTags && !tags_.find(frame.tag)) return {};
  TagTx& tag = tags_.get(frame.tag);
  if (static_cast<int32_t>(frame.number - tag.number) < 0) return {};  // that one is out already
  Transfers::Offer offer;
  offer.slot = frame.slot;
  offer.sequence = static_cast<uint32_t>(frame.op);
  offer.remote = frame.address;
  offer.block = frame.region;
  // Its send will write to both lines of the slot.
  const TransferSlot& slot = link_.segment->incoming().slots[offer.slot];
  __builtin_prefetch(&slot, 1);
  __builtin_prefetch(&slot.cursor, 1);
  tag.adverts.push_back({frame.number, frame.length, offer});
  advertised_[frame.slot] = frame.tag;
  return {};
}

void Sender::fail_all(const Status& status) {
  while (Request* request = queue_.pop_front()) link_.finish(*request, status);
  while (Request* request = streams_.pop_front()) {
    request->staged ? link_.leave_in_doubt(*request, status) : link_.finish(*request, status);
  }
  while (Request* request = zero_copies_.pop_front()) {
    bool free = request->in_flight->is_over() && !request->staged;
    free ? link_.finish(*request, status) : link_.leave_in_doubt(*request, status);
  }
  link_.ops.for_each([&](Request* request) {
    if (request->sends() && request->phase == Phase::kOffered) {
      link_.finish(*request, status);
    }
  });
}

}  // namespace oh
