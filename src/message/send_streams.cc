// SPDX-License-Identifier: Apache-2.0
#include "message/send_streams.h"

#include <algorithm>
#include <utility>

namespace oh {
namespace {
constexpr size_t kStreamFrames = 16;  // of one stream, before the next one's turn
}  // namespace

void SendStreams::begin(Request* request, uint64_t granted, uint64_t border) {
  request->phase = Phase::kStream;
  request->moved = 0;
  request->granted = granted;
  request->border = border;
  if (request->on_device && !request->staged) begin_staging(request);
  streams_.push_back(request);
}

void SendStreams::grant(Request& request, uint64_t granted) {
  request.granted = std::max(request.granted, granted);
  if (request.staged) pipeline_.look_at(*request.staged);
}

void SendStreams::begin_eager(Request* request, uint64_t sent) {
  request->phase = Phase::kStream;
  request->moved = sent;
  if (!push(request)) streams_.push_back(request);
}

bool SendStreams::progress() {
  bool any = false;
  // A send that waited for its producer, which failed.
  while (Request* request = pipeline_.next_stopped(StagingDirection::kOut)) {
    if (request->phase != Phase::kOffered) break;
    end_staging(request);
  }
  for (size_t turns = streams_.size(); turns-- > 0 && link_.outbox.empty();) {
    Request* request = streams_.pop_front();
    const uint64_t before = request->moved;
    if (end_staging(request) || push(request)) {
      any = true;
    } else {
      any = any || request->moved != before;
      streams_.push_back(request);
    }
  }
  return end_zero_copies() || any;
}

// True when the whole message is on the wire, or UCX holds a part.
bool SendStreams::push(Request* request) {
  for (size_t i = 0; i < kStreamFrames && request->moved < request->size; ++i) {
    Frame frame;
    frame.type = FrameType::kData;
    frame.op = request->op;
    frame.address = request->moved;
    frame.eager = request->eager;
    const ByteView part = next_part(*request);
    if (part.empty()) return false;
    frame.payload = part.data();
    frame.payload_size = part.size();
    if (link_.ucx) {
      frame.payload_size = std::min(frame.payload_size, link_.ucx->zero_copy_part(request->size));
      const Handover sent = send_zero_copy(request, frame);
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

// The bytes that may be sent now.
ByteView SendStreams::next_part(Request& request) {
  uint64_t end = std::min(request.size, request.granted);
  if (request.border) {
    end = std::min(end, request.moved - request.moved % request.border + request.border);
  }
  std::span<uint8_t> there;
  if (request.is_run() && (!request.on_device || request.border == 0)) {
    // Blocks are contiguous only in the staging buffers of an engine.
    there = request.run.at(request.moved);
    end = std::min(end, request.moved + there.size());
  }
  if (request.staged) {
    // After a stop nothing more is sent: after its last byte the request would wait for an answer
    // again.
    return request.staged->failure.ok() ? pipeline_.filled(request, end) : ByteView();
  }
  if (end <= request.moved) return {};
  if (request.is_run()) return {there.data(), end - request.moved};
  return {request.data + request.moved, end - request.moved};
}

void SendStreams::finish_sent(Request* request) {
  request->path = link_.selection->framed_path(request->size, request->eager);
  request->nbytes = request->size;
  if (!request->internal) link_.stats.count(MetricOp::kSend, request->path, request->size);
  // A put ends when the peer acknowledges it.
  if (request->is_run() && !request->serves_peer() && !request->acknowledged) {
    if (request->staged) std::exchange(request->staged, nullptr)->request = nullptr;
    request->phase = Phase::kDirect;
    return;
  }
  link_.finish(*request, {});
}

SendStreams::Handover SendStreams::send_zero_copy(Request* request, const Frame& frame) {
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

bool SendStreams::end_zero_copies() {
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

void SendStreams::end_zero_copy(Request* request) {
  const std::shared_ptr<InFlight> in_flight = std::move(request->in_flight);
  Status lost;
  if (in_flight->code != ucx::kOk) {
    lost = error(OH_ERR_PEER_LOST, "UCX gave up sending %llu bytes to %s: %s",
                 static_cast<unsigned long long>(request->size), link_.name.c_str(),
                 link_.ucx->broken_by(*in_flight).text().c_str());
    if (request->staged) stop_staging(*request, lost);
  }
  const bool stopped = request->staged && !request->staged->failure.ok();
  if (!stopped && !lost.ok()) {
    link_.finish(*request, lost);
  } else if (!stopped && !request->status.ok()) {
    link_.finish(*request, std::move(request->status));
  } else if (stopped || request->moved < request->size) {
    streams_.push_back(request);
  } else {
    finish_sent(request);
  }
}

// Stops a send that needs no abort, because the peer knows of its end.
void SendStreams::stop_staging(Request& request, const Status& why) {
  request.staged->withdrawn = true;
  pipeline_.stop(*request.staged, why);
}

// Ends a request that has stopped, once its memory is not accessed. True: it has ended.
bool SendStreams::end_staging(Request* request) {
  StagedCopy* staged = request->staged.get();
  if (!staged || staged->failure.ok() || !staged->is_quiet()) return false;
  if (!staged->withdrawn) withdraw(*request, staged->failure);
  link_.finish(*request, Status(staged->failure));
  return true;
}

bool SendStreams::uses_buffer(const Request& request) {
  const StagedCopy* staged = request.staged.get();
  return request.in_flight || (staged && (staged->busy || staged->copying()));
}

bool SendStreams::give_up(Request* request, const Status& why) {
  if (request->staged && request->staged->busy) {
    pipeline_.stop(*request->staged, why);
    return false;
  }
  (request->in_flight ? zero_copies_ : streams_).erase(request);
  if (request->moved < request->size) withdraw(*request, why);
  link_.leave_in_doubt(*request, why);
  return true;
}

void SendStreams::send_abort(const Request& request, const Status& why) {
  Frame frame;
  frame.type = FrameType::kAbort;
  frame.op = request.op;
  frame.aux = static_cast<uint32_t>(why.code());
  link_.send(frame);
}

void SendStreams::withdraw(const Request& request, const Status& why) {
  send_abort(request, why);
  if (!request.is_run()) tags_.begin_epoch();
}

void SendStreams::abort(Request& run, const Status& why) {
  if (run.staged && run.staged->failure.ok()) {
    pipeline_.stop(*run.staged, why);
  } else if (!run.staged && run.status.ok()) {
    send_abort(run, why);
    run.status = why;  // its result, once the channel has released its buffer
  }
}

bool SendStreams::refuse(Request* request, const Status& why) {
  if (request->phase != Phase::kStream) {
    request->phase = Phase::kStream;
    streams_.push_back(request);
  } else if (request->moved < request->size) {
    send_abort(*request, why);
  }
  if (request->staged) {
    stop_staging(*request, why);
    return false;
  }
  if (request->in_flight) {
    request->status = why;  // its result, once UCX has released the buffer
    return false;
  }
  streams_.erase(request);
  return true;
}

void SendStreams::fail_all(const Status& status) {
  while (Request* request = streams_.pop_front()) {
    request->staged ? link_.leave_in_doubt(*request, status) : link_.finish(*request, status);
  }
  while (Request* request = zero_copies_.pop_front()) {
    const bool free = request->in_flight->is_over() && !request->staged;
    free ? link_.finish(*request, status) : link_.leave_in_doubt(*request, status);
  }
}

}  // namespace oh
