// SPDX-License-Identifier: Apache-2.0
//
// Frames on the socket, those that travel together over UCX, and whatever may stand in the ring of
// a peer.
#include <cstring>

#include "fuzz/fuzz.h"
#include "transport/shm/ring_channel.h"
#include "transport/socket/socket_channel.h"
#include "transport/ucx/ucx_packing.h"

namespace fuzz {

using namespace oh;

namespace {

struct Sink : MessageSink {
  size_t backlog() override { return 0; }
  Status send_message(uint8_t, ByteView head, ByteView tail) override {
    message.assign(head.begin(), head.end());
    message.insert(message.end(), tail.begin(), tail.end());
    return {};
  }
  Bytes message;
};

void check_socket(ByteView input) {
  Exact exact(input);
  Frame frame;
  if (!decode_frame(exact.view(), &frame).ok()) return;
  Bytes payload(frame.payload_size);
  frame.copy_payload(payload.data(), frame.length);
  Sink sink;
  SocketChannel channel(sink, 100);
  frame.payload = payload.data();
  require(channel.push(frame), "a frame that was decoded can be sent");
  Frame again;
  require(decode_frame(sink.message, &again).ok(), "a frame goes round");
  require(again.tag == frame.tag && again.payload_size == frame.payload_size, "with its fields");
}

void check_packed(ByteView input) {
  Exact exact(input);
  const bool whole = PackedFrames::are_whole(exact.view());
  PackedFrames frames(exact.view());
  Bytes again;
  uint64_t word = 0;
  FrameBody body;
  ByteView payload;
  while (frames.next(&word, &body, &payload)) {
    Frame frame;
    require(frame_from(word, body, &frame), "a frame that was taken out has a type");
    require(frame.payload_size == payload.size(), "and the payload that it tells of");
    frame.payload = payload.data();
    const size_t before = again.size();
    again.resize(before + kPackedHead + payload.size());
    require(pack_frame(again.data() + before, frame) == again.size() - before, "its size is known");
  }
  require(whole == (frames.at_end() && !input.empty()), "all of it is frames, or it is refused");
  require(!whole || again.size() == input.size(), "frames that were taken out can be packed");
}

// The input is written over the cells, the start of the payload ring, or pushed as good frames
// between.
void check_ring(ByteView input) {
  static Segment* const first = Segment::create(/*shared=*/false)->release();
  static Segment* const second = Segment::alias(*first).release();
  first->take_side(0, false);
  second->take_side(1, false);
  SegmentDirection& direction = first->outgoing();
  std::memset(static_cast<void*>(&direction.consumer), 0, sizeof(direction.consumer));
  std::memset(static_cast<void*>(direction.cells), 0, sizeof(direction.cells));
  RingChannel out(*first);
  RingChannel in(*second);
  Input bytes(input);
  Bytes room(RingChannel::kMaxPayload);
  uint64_t place = 0;
  for (int step = 0; step < 200 && !bytes.empty(); ++step) {
    uint8_t what = bytes.byte();
    if (what & 1) {
      ByteView raw = bytes.bytes(what >> 2 & 0x3f);
      Cell& cell = direction.cells[place++ % kCells];
      std::memcpy(reinterpret_cast<uint8_t*>(&cell) + (what & 2 ? 8 : 0), raw.data(),
                  std::min<size_t>(raw.size(), 56));
      if (what & 2)
        cell.word.store(cell_word(static_cast<uint32_t>(place - 1) << 1 | 1,
                                  static_cast<FrameType>(bytes.byte()), bytes.byte(),
                                  static_cast<uint16_t>(bytes.number(2))));
    } else {
      Frame frame;
      frame.type = static_cast<FrameType>(1 + (what >> 1) % static_cast<int>(FrameType::kLast));
      frame.payload_size = bytes.number(2) % (RingChannel::kMaxPayload + 1);
      frame.length = frame.payload_size;
      frame.payload = room.data();
      place += out.push(frame);
    }
    Frame frame;
    while (in.ready() && in.peek(&frame).ok()) {
      size_t size = 0;
      bool given = false;
      if (in.take_short(frame.tag, room.data(), room.size(), &size, &given)) continue;
      require(frame.payload_size <= room.size(), "a payload has a bound");
      frame.copy_payload(room.data(), frame.length);
      in.pop();
    }
  }
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (int type = 1; type <= static_cast<int>(FrameType::kLast); ++type) {
    Sink sink;
    SocketChannel channel(sink, 100);
    Bytes payload(20, 7);
    Frame frame;
    frame.type = static_cast<FrameType>(type);
    frame.payload = payload.data();
    frame.payload_size = frame.length = payload.size();
    channel.push(frame);
    sink.message.insert(sink.message.begin(), 0);
    all.push_back(sink.message);
    all.push_back({1, 3, static_cast<uint8_t>(type), 1, 0, 4, 0, 3, 3, 2, 0, 1, 5});
    Bytes packed(1 + 2 * (kPackedHead + payload.size()), 2);
    const size_t first = pack_frame(packed.data() + 1, frame);
    (void)pack_frame(packed.data() + 1 + first, frame);
    all.push_back(packed);
  }
  return all;
}

void check(ByteView input) {
  Input in(input);
  const uint8_t which = in.byte() % 3;
  which == 0   ? check_socket(in.rest())
  : which == 1 ? check_ring(in.rest())
               : check_packed(in.rest());
}

}  // namespace fuzz
