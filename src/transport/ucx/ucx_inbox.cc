// SPDX-License-Identifier: Apache-2.0
//
// What arrives on a link over UCX.
#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/ucx/ucx_channel.h"
#include "transport/ucx/ucx_note.h"
#include "transport/ucx/ucx_packing.h"

namespace oh {
namespace {
// Up to this size bytes are copied rather than left in UCX's hands.
constexpr size_t kCopied = 1024;
// Frames that may come before their turn, or wait to be looked at; credit keeps an honest peer far
// below.
constexpr size_t kMostStashed = 65536;
constexpr size_t kMostWaiting = 1 << 20;
// Bytes of the former. What overtakes is on its way: an honest peer has some MiB of copies there,
// and parts that were asked for are put in place and not stashed.
constexpr uint64_t kMostBytesStashed = 64 << 20;

bool is_before(const UcxChannel::Expected& message, uint32_t number) {
  return static_cast<int32_t>(message.number - number) < 0;
}
}  // namespace

// With the worker's lock held. kInProgress: the data is ours until am_release() or am_receive().
ucx::Code UcxChannel::arrived(const UcxHead& head, ByteView header, void* data, size_t size,
                              uint64_t attributes) {
  if (static_cast<uint32_t>(head.word) != key_) return ucx::kOk;
  has_heard_ = true;
  if (!why_broken_.empty()) return ucx::kOk;
  FrameType type = word_type(head.word);
  if (type == kUcxProbe) {
    send_probe(kUcxProbeAnswer, header.size());
    return ucx::kOk;
  }
  if (type == kUcxProbeAnswer) {
    probe_answer_ = header.size();
    return ucx::kOk;
  }
  Arrival arrival;
  arrival.word = head.word;
  const bool in_turn = head.sequence == next_sequence_;
  if (type == kUcxPacked) {
    ByteView frames(static_cast<const uint8_t*>(data), size);
    if (header.size() > sizeof(head) || (attributes & ucx::AmReceived::kRendezvous) ||
        !PackedFrames::are_whole(frames)) {
      break_off(strf("%zu bytes of packed frames make no sense", size));
    } else {
      take_turn(head, arrival, frames);
    }
    return ucx::kOk;
  }
  bool is_short = type == FrameType::kEager && (word_flags(head.word) & kShort) != 0;
  header = header.subspan(sizeof(head));
  size_t fixed = is_short ? sizeof(uint64_t) : sizeof(FrameBody);
  if (header.size() < fixed || (is_short && size > 0)) {
    break_off(strf("a header of %zu bytes makes no sense", header.size()));
    return ucx::kOk;
  }
  std::memcpy(is_short ? static_cast<void*>(&arrival.body.tag) : &arrival.body, header.data(),
              fixed);
  ByteView payload = header.subspan(fixed);
  if (is_short) {
    arrival.body.length = arrival.body.payload_size = static_cast<uint32_t>(payload.size());
  }
  if (arrival.body.payload_size != payload.size() + size || (size > 0 && !payload.empty())) {
    break_off(strf("a frame with %u bytes came with %zu", arrival.body.payload_size,
                   payload.size() + size));
    return ucx::kOk;
  }
  ucx::Code taken = ucx::kOk;
  arrival.rendezvous = (attributes & ucx::AmReceived::kRendezvous) != 0;
  bool part = type == FrameType::kData && !(word_flags(head.word) & (kOneSided | kReply));
  if (!arrival.rendezvous && size > 0) {
    // What has been placed is in the inbox once the worker's lock is let go: a receive that is
    // taken back finds it there.
    const bool early = type == FrameType::kEager && in_turn;
    arrival.placed = (part && place(arrival.body, data, size)) ||
                     (early && place_early(arrival.body, data, size));
  }
  if (in_turn && !arrival.rendezvous && !arrival.placed) {
    ByteView bytes = size > 0 ? ByteView(static_cast<const uint8_t*>(data), size) : payload;
    if (land(&arrival, bytes.data(), bytes.size())) {
      arrival.placed = true;
      payload = {};
    }
  }
  if (arrival.placed) size = 0;
  bool kept = arrival.rendezvous || (size > kCopied && (attributes & ucx::AmReceived::kData));
  if (kept) {
    arrival.data = data;
    taken = ucx::kInProgress;
  } else if (size > 0) {
    payload = {static_cast<const uint8_t*>(data), size};
  }
  return take_turn(head, arrival, payload) ? taken : ucx::kOk;
}

// False: nothing honest comes so.
bool UcxChannel::take_turn(const UcxHead& head, const Arrival& arrival, ByteView payload) {
  if (head.sequence == next_sequence_) {
    deliver(arrival, payload);
    return true;
  }
  const bool kept = arrival.data && !arrival.rendezvous;
  const uint64_t size = kept ? arrival.body.payload_size : payload.size();
  if (stash_.size() >= kMostStashed || size > kMostBytesStashed - stashed_ ||
      stash_.contains(head.sequence) || head.sequence - next_sequence_ > kMostWaiting) {
    break_off(strf("message %u came while %u is awaited", head.sequence, next_sequence_));
    return false;
  }
  stashed_ += size;
  stash_.emplace(head.sequence, Stashed{arrival, size, Bytes(payload.begin(), payload.end())});
  return true;
}

void UcxChannel::expect(uint64_t op, uint8_t* to, uint64_t begin, uint64_t size) {
  SpinGuard guard(worker_->lock);
  if (!all_forbidden_) places_.push_back({op, to, begin, size});
}

void UcxChannel::forbid(uint64_t op, std::optional<uint64_t> begin) {
  SpinGuard guard(worker_->lock);
  std::erase_if(places_, [&](const Place& place) {
    return place.op == op && (!begin || place.begin == *begin);
  });
}

// False: it goes nowhere that is known.
bool UcxChannel::place(const FrameBody& body, const void* data, size_t size) {
  for (const Place& place : places_) {
    if (place.op != body.op || body.address < place.begin) continue;
    const uint64_t offset = body.address - place.begin;
    if (offset > place.size || size > place.size - offset) continue;
    std::memcpy(place.to + offset, data, size);
    return true;
  }
  return false;
}

std::deque<UcxChannel::Expected>::iterator UcxChannel::ExpectedTag::find(uint32_t number) {
  auto found = std::lower_bound(messages.begin(), messages.end(), number, is_before);
  return found != messages.end() && found->number == number ? found : messages.end();
}

bool UcxChannel::expect_early(uint64_t tag, const Expected& message) {
  SpinGuard guard(worker_->lock);
  if (all_forbidden_) return false;
  if (expected_.size() >= tidy_at_) {
    expected_.drop_idle();
    tidy_at_ = std::max(kTidyAt, 2 * expected_.size());
  }
  std::deque<Expected>& messages = expected_.get(tag).messages;
  auto place = std::lower_bound(messages.begin(), messages.end(), message.number, is_before);
  // Each is taken back by its number.
  if (place != messages.end() && place->number == message.number) return false;
  messages.insert(place, message);
  return true;
}

bool UcxChannel::forbid_early(uint64_t tag, uint32_t number, bool taken) {
  SpinGuard guard(worker_->lock);
  ExpectedTag* entry = expected_.find(tag);
  if (!entry) return true;
  auto message = entry->find(number);
  if (message == entry->messages.end()) return true;
  if (message->has_come && !taken) return false;
  entry->messages.erase(message);
  return true;
}

// False: no receive expects it, or it does not fit.
bool UcxChannel::place_early(const FrameBody& body, const void* data, size_t size) {
  ExpectedTag* entry = expected_.find(body.tag);
  if (!entry) return false;
  auto message = entry->find(body.number);
  if (message == entry->messages.end() || message->has_come || message->epoch != body.aux ||
      body.length > message->capacity || size > body.length) {
    return false;
  }
  std::memcpy(message->to, data, size);
  message->has_come = true;
  if (size < body.length) places_.push_back({body.op, message->to, 0, body.length});
  return true;
}

void Buffer::append(ByteView bytes) {
  if (bytes.size() > room_ - size_) {
    size_t room = std::max(2 * room_, size_ + bytes.size());
    std::unique_ptr<uint8_t[]> larger(new uint8_t[room]);
    if (size_ > 0) std::memcpy(larger.get(), bytes_.get(), size_);
    bytes_ = std::move(larger);
    room_ = room;
  }
  if (!bytes.empty()) std::memcpy(bytes_.get() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
}

void UcxChannel::deliver(const Arrival& arrival, ByteView payload) {
  size_t count = 0;
  {
    SpinGuard guard(inbox_lock_);
    const size_t before = inbox_.arrivals.size();
    enter(arrival, payload);
    for (auto next = stash_.find(++next_sequence_); next != stash_.end();
         next = stash_.find(++next_sequence_)) {
      Stashed& stashed = next->second;
      if (word_type(stashed.arrival.word) != kUcxPacked) (void)land(&stashed.arrival, nullptr, 0);
      enter(stashed.arrival, stashed.bytes);
      stashed_ -= stashed.size;
      stash_.erase(next);
    }
    count = inbox_.arrivals.size();
    // release: pairs with ready().
    waiting_.fetch_add(count - before, std::memory_order_release);
  }
  if (count > kMostWaiting) break_off("it sends and takes no answers");
  worker_->note_arrival();
}

void UcxChannel::enter(Arrival arrival, ByteView payload) {
  if (word_type(arrival.word) == kUcxPacked) return enter_pack(payload);
  arrival.offset = inbox_.bytes.size();
  inbox_.bytes.append(payload);
  inbox_.arrivals.push_back(arrival);
}

void UcxChannel::enter_pack(ByteView bytes) {
  PackedFrames frames(bytes);
  Arrival arrival;
  ByteView payload;
  while (frames.next(&arrival.word, &arrival.body, &payload)) {
    arrival.passed_by = false;
    arrival.placed = land(&arrival, payload.data(), payload.size());
    enter(arrival, arrival.placed ? ByteView() : payload);
  }
}

Status UcxChannel::peek(Frame* frame) {
  if (position_ == batch_.arrivals.size()) {
    batch_.arrivals.clear();
    batch_.bytes.clear();
    position_ = 0;
    SpinGuard guard(inbox_lock_);
    std::swap(batch_, inbox_);
  }
  const Arrival& arrival = batch_.arrivals[position_];
  if (!frame_from(arrival.word, arrival.body, frame)) {
    return error(OH_ERR_PROTOCOL, "a frame of type %u",
                 static_cast<unsigned>(word_type(arrival.word)));
  }
  frame->remote = arrival.rendezvous;
  frame->placed = arrival.placed;
  frame->payload = arrival.rendezvous || arrival.placed ? nullptr
                   : arrival.data                       ? static_cast<const uint8_t*>(arrival.data)
                                                        : batch_.bytes.at(arrival.offset);
  return {};
}

void UcxChannel::pop() {
  Arrival& arrival = batch_.arrivals[position_++];
  ++taken_;
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  // release: pairs with land().
  if (arrival.passed_by) passed_by_.fetch_sub(1, std::memory_order_release);
  if (!arrival.data) return;
  SpinGuard guard(worker_->lock);
  worker_->library().am_release(worker_->handle(), std::exchange(arrival.data, nullptr));
}

std::shared_ptr<Flight> UcxChannel::fetch(const Frame& frame, uint8_t* to) {
  auto flight = std::make_shared<Flight>(*worker_, ucx::symbol::am_receive);
  Arrival& arrival = batch_.arrivals[position_];
  ucx::RequestParam param;
  param.attributes =
      ucx::RequestParam::kCallback | ucx::RequestParam::kUserData | ucx::RequestParam::kMemoryType;
  param.callback.receive = on_fetched;
  param.user_data = flight.get();
  SpinGuard guard(worker_->lock);
  void* pointer = worker_->library().am_receive(
      worker_->handle(), std::exchange(arrival.data, nullptr), to, frame.payload_size, &param);
  return begin(std::move(flight), pointer);
}

void UcxChannel::on_fetched(void* request, ucx::Code code, size_t, void* context) {
  on_flight_over(request, code, context);
}

}  // namespace oh
