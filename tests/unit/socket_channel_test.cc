// SPDX-License-Identifier: Apache-2.0
//
// Frames, and the channel that carries them on the control socket.
#include "transport/socket/socket_channel.h"

#include <cstring>
#include <memory>

#include "unit/support.h"

namespace socket_channel_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

class Sink : public MessageSink {
 public:
  size_t backlog() override { return queued; }
  Status send_message(uint8_t type, ByteView head, ByteView tail) override {
    EXPECT_EQ(type, kFrameMessage);
    Bytes message(head.begin(), head.end());
    message.insert(message.end(), tail.begin(), tail.end());
    messages.push_back(std::move(message));
    return {};
  }
  size_t queued = 0;
  std::vector<Bytes> messages;
};

Frame sample(const Bytes& payload) {
  Frame frame;
  frame.type = FrameType::kData;
  frame.flags = kOneSided | kReply;
  frame.tag = 1;
  frame.length = 2;
  frame.op = 3;
  frame.address = 4;
  frame.slot = 5;
  frame.number = 6;
  frame.region = 7;
  frame.aux = 8;
  frame.payload = payload.data();
  frame.payload_size = payload.size();
  return frame;
}

TEST(FrameTest, TheWordHoldsItsFields) {
  for (uint32_t sequence : {0u, 1u, UINT32_MAX}) {
    for (int type = 0; type < 256; ++type) {
      uint64_t word = cell_word(sequence, static_cast<FrameType>(type), 0xa5, 0xbeef);
      EXPECT_EQ(static_cast<uint32_t>(word), sequence);
      EXPECT_EQ(static_cast<int>(word_type(word)), type);
      EXPECT_EQ(word_flags(word), 0xa5);
      EXPECT_EQ(word_short_size(word), 0xbeefu);
    }
  }
}

TEST(FrameTest, OnlyKnownTypesAreTaken) {
  Frame frame;
  for (int type = 0; type < 256; ++type) {
    bool known = type >= 1 && type <= static_cast<int>(FrameType::kLast);
    EXPECT_EQ(frame_from(cell_word(1, static_cast<FrameType>(type), 0, 0), FrameBody{}, &frame),
              known)
        << type;
  }
}

TEST(SocketChannelTest, FramesGoRound) {
  Sink sink;
  SocketChannel channel(sink, 1000);
  for (size_t size : {size_t{0}, size_t{1}, size_t{400}, SocketChannel::kMaxPayload}) {
    Bytes payload = unit::Random(size).bytes(size);
    ASSERT_TRUE(channel.push(sample(payload)));
    Frame frame;
    ASSERT_TRUE(is_ok(decode_frame(sink.messages.back(), &frame)));
    EXPECT_EQ(frame.type, FrameType::kData);
    EXPECT_EQ(frame.flags, kOneSided | kReply);
    EXPECT_EQ(frame.tag, 1u);
    EXPECT_EQ(frame.length, 2u);
    EXPECT_EQ(frame.op, 3u);
    EXPECT_EQ(frame.address, 4u);
    EXPECT_EQ(frame.slot, 5u);
    EXPECT_EQ(frame.number, 6u);
    EXPECT_EQ(frame.region, 7u);
    EXPECT_EQ(frame.aux, 8u);
    ASSERT_EQ(frame.payload_size, size);
    Bytes copied(size);
    frame.copy_payload(copied.data(), size);
    EXPECT_EQ(copied, payload);
  }
}

TEST(SocketChannelTest, CutOffOrTooLongIsRefused) {
  Sink sink;
  SocketChannel channel(sink, 1000);
  Bytes payload(20, 9);
  ASSERT_TRUE(channel.push(sample(payload)));
  Bytes message = sink.messages.back();
  Frame frame;
  for (size_t size = 0; size < message.size(); ++size) {
    std::unique_ptr<uint8_t[]> exact(new uint8_t[size]);
    std::copy_n(message.begin(), size, exact.get());
    EXPECT_TRUE(fails_with(decode_frame({exact.get(), size}, &frame), OH_ERR_PROTOCOL)) << size;
  }
  message.push_back(0);
  EXPECT_TRUE(fails_with(decode_frame(message, &frame), OH_ERR_PROTOCOL));
  Bytes large(SocketChannel::kMaxPayload + 1);
  ASSERT_TRUE(channel.push(sample(large)));
  EXPECT_TRUE(fails_with(decode_frame(sink.messages.back(), &frame), OH_ERR_PROTOCOL));
}

TEST(SocketChannelTest, ABacklogPushesBack) {
  Sink sink;
  SocketChannel channel(sink, 1000);
  sink.queued = 1 << 20;
  EXPECT_FALSE(channel.push(sample({})));
  EXPECT_TRUE(sink.messages.empty());
  sink.queued = 0;
  EXPECT_TRUE(channel.push(sample({})));
  EXPECT_EQ(sink.messages.size(), 1u);
}

TEST(SocketChannelTest, CreditIsGivenBackInPortions) {
  Sink sink;
  SocketChannel channel(sink, 1000);
  channel.return_credit(249);
  EXPECT_EQ(channel.take_due(), 0u);
  channel.return_credit(51);
  EXPECT_EQ(channel.take_due(), 300u);
  EXPECT_EQ(channel.take_due(), 0u);
  channel.return_credit(10);
  EXPECT_EQ(channel.take_due(), 0u);

  EXPECT_EQ(channel.credit_returned(), 0u);
  channel.add_credit(70);
  channel.add_credit(7);
  EXPECT_EQ(channel.credit_returned(), 77u);
}

}  // namespace
}  // namespace socket_channel_test
