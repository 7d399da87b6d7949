// SPDX-License-Identifier: Apache-2.0
#include "transport/socket/socket_channel.h"

namespace oh {

bool SocketChannel::push(const Frame& frame) {
  if (sink_.backlog() > kMaxBacklog) return false;
  Bytes head;
  Writer writer(head);
  FrameBody body = body_of(frame);
  writer.u64(cell_word(0, frame.type, frame.flags, 0));
  writer.raw({reinterpret_cast<const uint8_t*>(&body), sizeof(body)});
  // A failed send means that the connection is lost; the watcher detects that and fails the link.
  (void)sink_.send_message(kFrameMessage, head, {frame.payload, frame.payload_size}).ok();
  return true;
}

Status decode_frame(ByteView message, Frame* frame) {
  Reader reader(message);
  uint64_t word = reader.u64();
  FrameBody body{};
  ByteView raw = reader.raw(sizeof(body));
  if (raw.size() == sizeof(body)) std::memcpy(&body, raw.data(), sizeof(body));
  if (!reader.ok() || !frame_from(word, body, frame) || frame->payload_size != reader.remaining() ||
      frame->payload_size > SocketChannel::kMaxPayload) {
    return error(OH_ERR_PROTOCOL, "a frame of %zu bytes makes no sense", message.size());
  }
  frame->payload = reader.raw(frame->payload_size).data();
  return {};
}

}  // namespace oh
