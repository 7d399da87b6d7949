// SPDX-License-Identifier: Apache-2.0
#include "message/frame_router.h"

#include "base/fault.h"

namespace oh {
namespace {
constexpr size_t kMaxAnswers = 1 << 20;
}  // namespace

Status FrameRouter::on_frame(const Frame& frame) {
  OH_FAULT_POINT("peer.frame");
  if (link_.outbox.size() > kMaxAnswers) {
    return error(OH_ERR_PROTOCOL, "%s does not read: %zu answers wait for it", link_.name.c_str(),
                 link_.outbox.size());
  }
  if (frame.remote && (frame.type != FrameType::kData || frame.flags & kOneSided)) {
    return error(OH_ERR_PROTOCOL,
                 "%s sent a frame of type %u without its payload: only those of messages may have "
                 "one that is fetched",
                 link_.name.c_str(), static_cast<unsigned>(frame.type));
  }
  switch (frame.type) {
    case FrameType::kEager:
      return receiver_.on_eager(frame);
    case FrameType::kData:
      if (!(frame.flags & kOneSided)) return receiver_.on_data(frame);
      return one_sided_.on_frame(frame);
    case FrameType::kRts:
      return frame.flags & kOneSided ? one_sided_.on_frame(frame) : receiver_.on_rts(frame);
    case FrameType::kReady:
      receiver_.on_ready(frame);
      return {};
    case FrameType::kCts:
      sender_.on_cts(frame);
      return {};
    case FrameType::kReject:
      sender_.on_reject(frame);
      return {};
    case FrameType::kRtr:
      return sender_.on_rtr(frame);
    case FrameType::kEpoch:
      return matcher_.begin_epoch(frame.aux);
    case FrameType::kAbort:
      if (frame.flags & kOneSided) return one_sided_.on_frame(frame);
      receiver_.on_abort(frame);
      return {};
    case FrameType::kNotify:
    case FrameType::kPut:
    case FrameType::kGet:
    case FrameType::kAck:
    case FrameType::kSignal:
    case FrameType::kKeyWanted:
    case FrameType::kKey:
    case FrameType::kRetireKey:
    case FrameType::kKeyGone:
      return one_sided_.on_frame(frame);
    case FrameType::kFetch:
    case FrameType::kFetched:
      return atomics_.on_frame(frame);
    case FrameType::kNack: {
      oh_status code = frame_failure(frame);
      async_error_ = error(code,
                           "a message with tag %llu that was sent to %s failed there: %s (its "
                           "receive has room for %llu bytes)",
                           static_cast<unsigned long long>(frame.tag), link_.name.c_str(),
                           status_text(code), static_cast<unsigned long long>(frame.length));
      return {};
    }
    case FrameType::kCredit:
      if (link_.counted) link_.counted->add_credit(frame.length);
      return {};
    case FrameType::kBatchEnd:
      return batches_.on_end(frame);
    case FrameType::kPad:
      return {};
    case FrameType::kNone:
      break;
  }
  return error(OH_ERR_PROTOCOL,
               "%s sent a frame of type %u, which this version does not know: use the same release "
               "of onehop on both sides",
               link_.name.c_str(), static_cast<unsigned>(frame.type));
}

}  // namespace oh
