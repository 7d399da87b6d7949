// SPDX-License-Identifier: Apache-2.0
//
// What leaves in parts, and from where it is.
#include <algorithm>

#include "message/sender.h"

namespace oh {
namespace {
constexpr size_t kStreamFrames = 16;  // of one stream before it is the next one's turn
}  // namespace

// Hands the payload over from where it is.
Sender::Handover Sender::send_zero_copy(Request* request, const Frame& frame) {
  std::shared_ptr<InFlight> in_flight = link_.ucx->send_zero_copy(frame);
  if (!in_flight) return Handover::kNoRoom;
  request->moved = frame.address + frame.payload_size;
  request->phase = Phase::kStream;
  if (in_flight->is_over() && in_flight->code == ucx::kOk) return Handover::kSent;
  request->in_flight = std::move(in_flight);
  if (request->in_flight->is_over()) {
    end_zero_copy(request);
  } else {
    zero_copies_.push_back(request);
  }
  return Handover::kTaken;
}

bool Sender::end_zero_copies() {
  bool any = false;
  for (Request* request = zero_copies_.front(); request;) {
    Request* next = zero_copies_.next(request);
    if (request->in_flight->is_over()) {
      zero_copies_.erase(request);
      end_zero_copy(request);
      any = true;
    }
    request = next;
  }
  return any;
}

void Sender::end_zero_copy(Request* request) {
  std::shared_ptr<InFlight> in_flight = std::move(request->in_flight);
  Status lost;
  if (in_flight->code != ucx::kOk) {
    lost = error(OH_ERR_PEER_LOST, "UCX gave up sending %llu bytes to %s: %s",
                 static_cast<unsigned long long>(request->size), link_.name.c_str(),
                 link_.ucx->broken_by(*in_flight).text().c_str());
    if (request->staged) stop_staging(*request, lost);
  }
  if (request->staged && !request->staged->failure.ok()) {
    streams_.push_back(request);
  } else if (!lost.ok()) {
    link_.finish(*request, lost);
  } else if (!request->status.ok()) {
    link_.finish(*request, std::move(request->status));
  } else if (request->moved < request->size) {
    streams_.push_back(request);
  } else {
    finish_sent(request);
  }
}

void Sender::begin_staging(Request* request) {
  pipeline_.begin(request, StagingDirection::kOut, request->op, request->size);
}

// What may go now.
ByteView Sender::next_part(Request& request) {
  uint64_t end = std::min(request.size, request.granted);
  if (request.border) {
    end = std::min(end, request.moved - request.moved % request.border + request.border);
  }
  std::span<uint8_t> there;
  if (request.is_run() && (!request.on_device || request.border == 0)) {
    // Into the buffers of an engine it goes as it comes; else the blocks of either side are apart.
    there = request.run.at(request.moved);
    end = std::min(end, request.moved + there.size());
  }
  if (request.staged) {
    // Of one that was stopped nothing more goes: it would be all, and wait for an answer again.
    return request.staged->failure.ok() ? pipeline_.filled(request, end) : ByteView();
  }
  if (end <= request.moved) return {};
  if (request.is_run()) return {there.data(), end - request.moved};
  return {request.data + request.moved, end - request.moved};
}

// The other side knows.
void Sender::stop_staging(Request& request, const Status& why) {
  request.staged->withdrawn = true;
  pipeline_.stop(*request.staged, why);
}

// True when the request has ended, as it could not go on.
bool Sender::end_staging(Request* request) {
  StagedCopy* staged = request->staged.get();
  if (!staged || staged->failure.ok() || !staged->is_quiet()) return false;
  if (!staged->withdrawn) withdraw(*request, staged->failure);
  link_.finish(*request, Status(staged->failure));
  return true;
}

// True when the whole message is on the wire; the request has ended then.
bool Sender::push_stream(Request* request) {
  for (size_t i = 0; i < kStreamFrames && request->moved < request->size; ++i) {
    Frame frame;
    frame.type = FrameType::kData;
    frame.op = request->op;
    frame.address = request->moved;
    frame.early = request->early;
    const ByteView part = next_part(*request);
    if (part.empty()) return false;
    frame.payload = part.data();
    frame.payload_size = part.size();
    if (link_.ucx) {
      frame.payload_size = std::min(frame.payload_size, link_.ucx->zero_copy_part(request->size));
      Handover sent = send_zero_copy(request, frame);
      if (sent == Handover::kSent) continue;
      return sent == Handover::kTaken;
    }
    frame.payload_size =
        std::min<uint64_t>(frame.payload_size, link_.channel->part_of(request->size));
    if (!link_.push(frame)) return false;
    request->moved += frame.payload_size;
  }
  if (request->moved < request->size) return false;
  finish_sent(request);
  return true;
}

}  // namespace oh
