// SPDX-License-Identifier: Apache-2.0
#include "message/sender.h"

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
  if (!queue_.empty() || !link_.outbox.empty() || !link_.selection->is_short(size) ||
      !has_credit(charge)) {
    return false;
  }
  TagTx* entry = tags_.find(tag);
  if (!entry || !entry->ready.empty()) return false;
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
  const oh_path path = link_.selection->framed_path(size, /*eager=*/true);
  link_.stats.count(MetricOp::kSend, path, size);
  link_.flight.note(OpKind::kSend, path, tag, size);
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
  return streams_.progress() || any;
}

// Puts the request on the wire; false when there is no room now.
bool Sender::transmit(Request* request) {
  TagTx* next = tags_.next(request->tag);
  if (!next) return false;
  TagTx& tag = *next;
  if (!tag.ready.empty() && use_rtr(request, tag)) {
    ++tag.number;
    return true;
  }
  uint64_t charge = eager_charge(request->size);
  const bool small = link_.selection->may_be_eager(request->on_device, request->size);
  if (small && has_credit(charge)) return transmit_eager(request, tag, charge);
  if (!transmit_rts(request, tag)) return false;
  if (small) ++link_.stats.out_of_credit;
  return true;
}

// Reads the peer's cache line only when the last value does not suffice: the peer writes that line.
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
  frame.aux = tags_.epoch();
  frame.payload = request->data;
  const bool zero_copy = link_.ucx && request->size > link_.granted_inline;
  frame.payload_size =
      std::min<uint64_t>(request->size, zero_copy ? link_.ucx->zero_copy_part(request->size)
                                                  : link_.channel->part_of(request->size));
  bool whole = frame.payload_size == request->size;
  if (!whole) frame.op = request->op = link_.ops.add(request);
  request->eager = true;
  using Handover = SendStreams::Handover;
  const Handover sent = zero_copy           ? streams_.send_zero_copy(request, frame)
                        : link_.push(frame) ? Handover::kSent
                                            : Handover::kNoRoom;
  if (sent == Handover::kNoRoom) {
    if (request->op) link_.ops.remove(std::exchange(request->op, 0));
    request->eager = false;
    return false;
  }
  ++tag.number;
  charge_used_ += charge;
  if (sent == Handover::kTaken) return true;  // it may even have ended
  if (whole) {
    streams_.finish_sent(request);
  } else {
    streams_.begin_eager(request, frame.payload_size);
  }
  return true;
}

bool Sender::transmit_rts(Request* request, TagTx& tag) {
  Frame frame;
  frame.type = FrameType::kRts;
  frame.tag = request->tag;
  frame.length = request->size;
  // Without a slot the receiver answers with a CTS.
  const SlotUse use = link_.selection->offered(request->on_device, request->size);
  const bool direct = transfers_.has_use(use, *request);
  Transfer* transfer = direct ? transfers_.offer(request, /*source=*/true) : nullptr;
  if (use == SlotUse::kRequired && !transfer) return false;
  if (transfer) {
    frame.slot = transfer->index;
    frame.number = transfer->sequence;
    frame.address = transfer->slot->owner_address.load(std::memory_order_relaxed);
    frame.region = transfer->slot->owner_block.load(std::memory_order_relaxed);
  }
  if (!link_.segment && request->pending()) frame.flags |= kNotYet;
  frame.op = request->op = link_.ops.add(request);
  const bool sent = link_.push(frame);
  if (!sent && (!transfer || transfers_.withdraw(transfer))) {
    link_.ops.remove(std::exchange(request->op, 0));
    return false;
  }
  ++tag.number;
  if (!sent) return true;  // a faulty peer has claimed the slot of a frame that it did not get
  request->phase = Phase::kOffered;
  if (frame.flags & kNotYet) streams_.begin_staging(request);
  return true;
}

// Copies straight into the receive that was offered for this message's number, if there is one.
bool Sender::use_rtr(Request* request, TagTx& tag) {
  bool claimed = false;
  for (auto rtr = tag.ready.rbegin(); rtr != tag.ready.rend() && !claimed; ++rtr) {
    if (rtr->number != tag.number || rtr->capacity < request->size ||
        !link_.selection->uses_rtr(request->on_device, request->size)) {
      continue;
    }
    Transfers::Offer offer = rtr->offer;
    offer.length = request->size;
    claimed =
        transfers_.copies(*request, offer) && transfers_.claim(request, /*source=*/true, offer);
  }
  if (claimed) ++link_.stats.rtrs_used;
  SendTags::drop_ready(tag);
  return claimed;
}

bool Sender::cancel(Request* request, const Status& status, bool give_up) {
  if (SendStreams::uses_buffer(*request)) return give_up && streams_.give_up(request, status);
  switch (request->phase) {
    case Phase::kQueued:
      queue_.erase(request);
      break;
    case Phase::kOffered:
      if (request->transfer && !transfers_.withdraw(request->transfer)) return false;
      break;
    case Phase::kStream:
      streams_.remove(request);
      break;
    case Phase::kDirect:
      if (request->is_run()) break;  // all is sent: it waits only for the acknowledgement
      return false;
    default:
      return false;
  }
  if (request->phase != Phase::kQueued) streams_.withdraw(*request, status);
  link_.finish(*request, status);
  return true;
}

bool Sender::stop(Request* run, const Status& why) {
  if (cancel(run, why, /*give_up=*/false)) return true;
  streams_.abort(*run, why);
  return false;
}

void Sender::on_cts(const Frame& frame) {
  Request* request = link_.ops.find(frame.op);
  // Unknown: it was withdrawn meanwhile, and its abort is in flight.
  if (!request || !request->sends()) return;
  const uint64_t granted = frame.length ? frame.length : UINT64_MAX;
  if (request->phase == Phase::kStream) return streams_.grant(*request, granted);
  if (request->phase != Phase::kOffered) return;
  if (request->transfer && !transfers_.withdraw(request->transfer)) return;
  streams_.begin(request, granted, frame.address);
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
  if (request->phase == Phase::kStream || request->staged) {
    if (!streams_.refuse(request, why)) return;
  } else if (request->is_run() && request->phase == Phase::kDirect) {
    // All bytes are sent.
  } else if (request->phase != Phase::kOffered ||
             (request->transfer && !transfers_.withdraw(request->transfer))) {
    return;
  }
  link_.finish(*request, why);
}

void Sender::fail_all(const Status& status) {
  while (Request* request = queue_.pop_front()) link_.finish(*request, status);
  streams_.fail_all(status);
  link_.ops.for_each([&](Request* request) {
    if (request->sends() && request->phase == Phase::kOffered) {
      link_.finish(*request, status);
    }
  });
}

}  // namespace oh
