// SPDX-License-Identifier: Apache-2.0
//
// The channel on the control socket, for peers without a segment. The receiving half is the
// connection's reader: it turns each kFrameMessage into a Frame by decode_frame().
//
// Threading: guarded by the peer's lock.
#pragma once

#include "base/status.h"
#include "base/wire.h"
#include "transport/counted_credit.h"

namespace oh {

// What the channel needs of the connection: queueing one message, and how much is queued.
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

// A kFrameMessage's payload as a frame; its payload points into `message`.
Status decode_frame(ByteView message, Frame* frame);

}  // namespace oh
