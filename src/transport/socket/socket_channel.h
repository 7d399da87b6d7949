// SPDX-License-Identifier: Apache-2.0
//
// The channel on the control socket, for peers without a segment or UCX. The receiving half is the
// connection's reader, which decodes each kFrameMessage by decode_frame().
//
// Threading: guarded by the link's lock.
#pragma once

#include "base/status.h"
#include "base/wire.h"
#include "transport/counted_credit.h"

namespace oh {

// The channel's interface to the connection: queues a message, and reports the queued bytes.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  virtual size_t backlog() = 0;
  virtual Status send_message(uint8_t type, ByteView head, ByteView tail) = 0;
};

inline constexpr uint8_t kFrameMessage = 64;

class SocketChannel final : public CountedCredit {
 public:
  SocketChannel(MessageSink& sink, uint64_t peer_credit)
      : CountedCredit(peer_credit), sink_(sink) {}

  size_t max_payload() const override { return kMaxPayload; }
  size_t part_of(uint64_t) const override { return kMaxPayload; }
  size_t max_inline() const override { return kMaxPayload; }
  bool push(const Frame& frame) override;

  static constexpr size_t kMaxPayload = 64 * 1024;

 private:
  static constexpr size_t kMaxBacklog = 256 * 1024;

  MessageSink& sink_;
};

// Decodes the payload of a kFrameMessage; the frame's payload points into `message`.
// OH_ERR_PROTOCOL: malformed.
Status decode_frame(ByteView message, Frame* frame);

}  // namespace oh
