// SPDX-License-Identifier: Apache-2.0
#include "message/message_calls.h"

namespace oh {
namespace {
constexpr size_t kLooksForSmall = 1000;  // a few microseconds
// How long a send of device memory looks for its RTR, when a thread waits for it or the engine has
// to wait for an event. A receive that is posted at the same time is found so, which saves the
// announcement and its answer, and the question to the driver.
constexpr int64_t kRtrTime = 1200;
}  // namespace

Status MessageCalls::post_send(Request* request) {
  if (!request->began && link_.is_timed(request->size)) request->began = now_ns();
  link_.note_post(*request);
  LinkGuard guard(link_);
  OH_RETURN_IF_ERROR(link_.usable());
  if (request->on_device) OH_RETURN_IF_ERROR(admit_device_memory(link_));
  if (!sender_.has_room()) {
    ++link_.stats.back_pressure;
    return error(OH_AGAIN, "%u sends to %s wait for their receives: make progress and try again",
                 link_.pending_sends, link_.name.c_str());
  }
  request->peer = link_.peer;
  request->message_tag = request->tag;
  // A large send looks for its RTR first, so received frames are handled first.
  if (link_.selection->uses_rtr(request->on_device, request->size) && link_.ring &&
      link_.ring->ready()) {
    link_.progress_locked(nullptr);
    OH_RETURN_IF_ERROR(link_.usable());
  }
  if (request->on_device && (request->attended || request->pending()) && link_.ring) {
    int64_t begin = now_ns();
    while (!sender_.has_rtr(*request) && now_ns() - begin < kRtrTime) {
      if (!link_.ring->ready()) continue;
      link_.progress_locked(nullptr);
      OH_RETURN_IF_ERROR(link_.usable());
    }
  }
  // No thread may be here when its receive comes: if the memory is ready, the other side's engine
  // copies. So it does where it copies all.
  if (request->pending() &&
      (link_.selection->peer_copies_all() || (!request->attended && !sender_.has_rtr(*request)))) {
    OH_RETURN_IF_ERROR(ask_producer(*request));
  }
  sender_.post(request);
  // The engine is set to work before the call returns.
  if (request->on_device && transfers_.has_active()) transfers_.work(request->transfer);
  link_.posted();
  link_.note_posted(*request);
  return {};
}

// Whether the work that the request waits for is done already. The lock is let go.
Status MessageCalls::ask_producer(Request& request) {
  After& after = request.device.after;
  Result<bool> complete = link_.without_lock([&] {
    Result<bool> asked = after.is_complete();
    if (asked.ok() && *asked) after.reset();
    return asked;
  });
  OH_RETURN_IF_ERROR(complete.status());
  return link_.usable();
}

bool MessageCalls::send_now(const uint8_t* data, size_t size, uint64_t tag) {
  if (!link_.lock.try_lock()) return false;
  LinkGuard guard(link_, LinkGuard::Adopt{});
  return link_.is_open() && sender_.send_now(data, size, tag);
}

bool MessageCalls::recv_now(uint8_t* data, size_t capacity, uint64_t tag,
                            ShortReceives::Received* received) {
  // A large receive is announced (RTR) while it waits.
  if (capacity > link_.theirs.eager_max || !link_.lock.try_lock()) return false;
  LinkGuard guard(link_, LinkGuard::Adopt{});
  if (!link_.is_open()) return false;
  TagRx* entry = short_receives_.watch(tag);
  if (!entry || link_.busy.load(std::memory_order_relaxed)) return false;
  for (size_t i = 0; i < kLooksForSmall && !link_.lock.contended(); ++i) {
    if (!link_.ring->ready() || link_.ring->skip_pad()) continue;
    return short_receives_.take_next(*entry, data, capacity, received);
  }
  return false;
}

Status MessageCalls::post_recv(Request* request) {
  if (request->on_device) transfers_.prepare_slab(*request->device.exported);
  link_.note_post(*request);
  LinkGuard guard(link_);
  request->peer = link_.peer;
  // The next message may be this one's: then it is over.
  if (link_.is_open() && !link_.busy.load(std::memory_order_relaxed) &&
      short_receives_.take_now(request)) {
    return {};
  }
  // What came before the peer was lost is still to be had.
  if (link_.state() == Link::State::kLost && receiver_.get_unexpected(request)) {
    link_.posted();
    return {};
  }
  OH_RETURN_IF_ERROR(link_.usable());
  if (request->on_device) OH_RETURN_IF_ERROR(admit_device_memory(link_));
  receiver_.post(request);
  // What has come already needs no RTR.
  if (link_.ring && link_.ring->ready()) link_.progress_locked(request);
  if (!request->ended()) matcher_.offer(request);
  if (!request->ended() && request->on_device && transfers_.has_active()) {
    transfers_.work(request->transfer);
  }
  link_.posted();
  link_.note_posted(*request);
  return {};
}

std::optional<Receiver::Announced> MessageCalls::probe(uint64_t tag) {
  LinkGuard guard(link_);
  return receiver_.probe(tag);
}

void MessageCalls::offer_unexpected() {
  LinkGuard guard(link_);
  receiver_.offer_unexpected();
}

void MessageCalls::discard(uint64_t tag) {
  LinkGuard guard(link_);
  receiver_.discard(tag);
}

}  // namespace oh
