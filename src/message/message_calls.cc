// SPDX-License-Identifier: Apache-2.0
#include "message/message_calls.h"

namespace oh {
namespace {
constexpr size_t kLooksForSmall = 1000;  // a few microseconds
// How long a send of device memory polls for its RTR, in ns, if a thread waits for it or its memory
// is pending. This finds a receive that is posted at the same time, and saves the RTS, its answer
// and a query to the driver.
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
  // A large send uses its RTR if it has arrived, so received frames are handled first.
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
  // Possibly no local thread runs when the receive is posted. The peer's engine can copy then, but
  // only if the memory is ready. The same holds where the peer makes all copies.
  if (request->pending() &&
      (link_.selection->peer_copies_all() || (!request->attended && !sender_.has_rtr(*request)))) {
    OH_RETURN_IF_ERROR(ask_producer(*request));
  }
  sender_.post(request);
  // Starts the copy engine before the call returns.
  if (request->on_device && transfers_.has_active()) transfers_.work(request->transfer);
  link_.posted();
  link_.note_posted(*request);
  return {};
}

// Queries whether the work that the request waits for is done, and drops the wait if so. Releases
// the lock meanwhile.
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
  // A large receive has to be offered (RTR) while it waits.
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
  // If the next frame is its message, the receive ends here.
  if (link_.is_open() && !link_.busy.load(std::memory_order_relaxed) &&
      short_receives_.take_now(request)) {
    return {};
  }
  // Messages that arrived before the peer was lost can still be received.
  if (link_.state() == Link::State::kLost && receiver_.get_unexpected(request)) {
    link_.posted();
    return {};
  }
  OH_RETURN_IF_ERROR(link_.usable());
  if (request->on_device) OH_RETURN_IF_ERROR(admit_device_memory(link_));
  receiver_.post(request);
  // A message that has arrived already needs no RTR.
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
