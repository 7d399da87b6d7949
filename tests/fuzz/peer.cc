// SPDX-License-Identifier: Apache-2.0
//
// A peer that lies: whatever it writes into the segment or says on the socket, it may lose its link
// and nothing more. The input is a program of what both sides do in turn.
#include <cstring>

#include "fuzz/victim.h"

namespace fuzz {

using namespace oh;

namespace {

constexpr size_t kSizes[] = {0, 1, 16, 48, 400, 2048, 2049, 16384, 16385, 70000, 300000};
size_t size_of(uint8_t byte) { return kSizes[byte % (sizeof(kSizes) / sizeof(kSizes[0]))]; }
uint64_t tag_of(uint8_t byte) { return byte % 4; }

// Numbers that are often right, and sometimes absurd.
uint64_t number(Input& in) {
  uint8_t kind = in.byte();
  switch (kind % 8) {
    case 0:
      return 0;
    case 1:
      return 1 + (kind >> 3);
    case 2:
      return in.byte();
    case 3:
      return in.number(2);
    case 4:
      return uint64_t{1} << 32 | (kind >> 3);  // a name of an operation
    case 5:
      return uint64_t{2} << 32 | (kind >> 3);
    case 6:
      return UINT64_MAX - (kind >> 3);
    default:
      return in.number(8);
  }
}

Frame frame_of(Input& in, Bytes* payload) {
  Frame frame;
  frame.type = static_cast<FrameType>(1 + in.byte() % static_cast<int>(FrameType::kLast));
  frame.flags = static_cast<uint8_t>(in.byte() & ~kShort);
  frame.tag = number(in);
  frame.length = number(in);
  frame.op = number(in);
  frame.address = number(in);
  uint8_t slot = in.byte();
  frame.slot = slot & 1 ? kNoSlot : slot & 2 ? static_cast<uint32_t>(number(in)) : slot >> 2 & 3;
  frame.number = static_cast<uint32_t>(number(in));
  frame.region = static_cast<uint32_t>(number(in));
  frame.aux = static_cast<uint32_t>(number(in));
  payload->resize(size_of(in.byte() % 8));
  if (in.byte() % 2) frame.length = payload->size() + (in.byte() % 2) * 100;
  frame.payload = payload->data();
  frame.payload_size = payload->size();
  return frame;
}

// Any eight bytes of a slot, of the ring's bookkeeping, or of the state.
void scribble(Segment& segment, Input& in) {
  SegmentDirection& direction = in.byte() % 2 ? segment.outgoing() : segment.incoming();
  uint8_t where = in.byte();
  uint64_t value = number(in);
  if (where % 8 == 0) {
    segment.mine().state.store(static_cast<uint32_t>(value % 5));
  } else if (where % 8 == 1) {
    direction.consumer.cells.store(value);
  } else if (where % 8 == 2) {
    direction.consumer.payload.store(value);
  } else if (where % 8 == 3) {
    direction.consumer.credit.store(value);
  } else {
    auto* words = reinterpret_cast<std::atomic<uint64_t>*>(&direction.slots[where >> 3 & 3]);
    words[in.byte() % 16].store(value);
  }
}

// What an honest claimer would do with the victim's slots, with any length.
void claim(Segment& segment, Input& in) {
  TransferSlot& slot = segment.incoming().slots[in.byte() % 4];
  slot.claimer_address = number(in);
  slot.claimer_length = number(in);
  uint32_t sequence = slot_sequence(slot.word.load());
  slot_advance(slot, sequence, SlotState::kPosted, SlotState::kClaimed);
  if (in.byte() % 2) slot_advance(slot, sequence, SlotState::kClaimed, SlotState::kDone);
}

// What an honest owner would post, for the victim to claim.
void post(Segment& segment, Input& in) {
  TransferSlot& slot = segment.outgoing().slots[in.byte() % 4];
  slot.owner_address = number(in);
  slot.owner_length = number(in);
  slot.word.store(slot_word(static_cast<uint32_t>(number(in)), SlotState::kPosted));
}

void say(Victim& victim, std::unique_ptr<RingChannel>& ring, Input& in) {
  Bytes payload;
  Frame frame = frame_of(in, &payload);
  if ((frame.type == FrameType::kPut || frame.type == FrameType::kGet) && in.byte() % 4) {
    frame.region = victim.region().index;
    frame.tag = victim.region().version;
  }
  if (ring) {
    if (payload.size() <= RingChannel::kMaxPayload) ring->push(frame);
    return;
  }
  Bytes message;
  Writer writer(message);
  FrameBody body = body_of(frame);
  writer.u64(cell_word(0, frame.type, frame.flags, 0));
  writer.raw({reinterpret_cast<const uint8_t*>(&body), sizeof(body)});
  writer.raw(payload);
  victim.hear(kFrameMessage, message, false);
}

void control(Victim& victim, Input& in) {
  uint8_t type = in.byte();
  if (victim.segment()) return;
  Bytes bytes;
  Writer writer(bytes);
  if (type & 1) {
    writer.u32(static_cast<uint32_t>(number(in)));
    writer.u64(number(in));
    writer.u64(in.byte() % 2 ? 4096 : number(in));
  } else {
    ByteView raw = in.bytes(in.byte() % 32);
    writer.raw(raw);
  }
  victim.hear(static_cast<uint8_t>(64 + (type >> 1) % 8), bytes, in.byte() % 2);
}

void step(Victim& victim, std::unique_ptr<RingChannel>& ring, Input& in) {
  uint8_t what = in.byte();
  uint8_t detail = in.byte();
  switch (what % 12) {
    case 0:
    case 1:
    case 2:
      return say(victim, ring, in);
    case 3:
      return victim.post_recv(detail % 8 == 7 ? OH_ANY_TAG : tag_of(detail), size_of(in.byte()),
                              detail >> 6 == 3);
    case 4:
      return victim.post_send(tag_of(detail), size_of(in.byte()));
    case 5:
      return victim.post_one_sided(detail & 1, size_of(in.byte()), detail & 2, !ring && detail & 4);
    case 6:
      return victim.cancel_oldest(detail & 1);
    case 7:
      return ring ? scribble(*victim.segment(), in) : control(victim, in);
    case 8:
      return ring ? claim(*victim.segment(), in) : control(victim, in);
    case 9:
      return ring ? post(*victim.segment(), in) : say(victim, ring, in);
    case 10:
      return victim.collect();
    default:
      return victim.progress();
  }
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (uint8_t mode = 0; mode < 8; ++mode) {
    // A receive and a message for it; a send and its end; a put into our region.
    all.push_back({mode, 3, 1, 4, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 2, 1, 0, 11, 0});
    all.push_back({mode, 4, 1, 10, 8, 0, 0, 0, 0, 3, 0, 11, 0, 11, 0});
    all.push_back({mode, 0, 0, 8, 0, 1, 1, 1, 0, 1, 0, 0, 0, 3, 1, 0, 11, 0});
    // Receives of both kinds, an announced message, its bytes, and a withdrawal.
    all.push_back({mode, 3, 7, 9,  3, 0xc7, 5, 0,  0, 2, 0, 0, 2, 5, 4, 0, 1,
                   0,    0, 0, 3,  0, 11,   0, 0,  0, 1, 0, 0, 4, 0, 1, 0, 0,
                   0,    3, 0, 11, 0, 0,    0, 14, 0, 0, 4, 0, 1, 0, 0});
    all.push_back({mode, 5, 3, 5, 11, 0, 0, 0, 10, 0, 0, 0, 4, 0, 1, 0, 0, 0, 0, 0, 11, 0, 6, 1});
  }
  return all;
}

void check(ByteView input) {
  [[maybe_unused]] static auto* const kept =
      new std::shared_ptr<Endpoint>(Victim::shared_endpoint());
  Input in(input);
  uint8_t mode = in.byte();
  Victim victim((mode & 1) != 0, mode >> 1 & 3);
  std::unique_ptr<RingChannel> ring;
  if (victim.segment()) ring = std::make_unique<RingChannel>(*victim.segment());
  for (int steps = 0; steps < 300 && !in.empty(); ++steps) step(victim, ring, in);
  victim.progress();
}

}  // namespace fuzz
