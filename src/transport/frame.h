// SPDX-License-Identifier: Apache-2.0
//
// Frames: what two peers say to each other in the host domain. Channels carry frames in order. In a
// ring a frame is a 64-byte cell; the payload of a short message is in it and in the cells behind
// it, any other payload lies beside the ring.
//
//   word    sequence 32 | type 8 | flags 8 | short size 16      (written last, with release)
//   short   | tag 8 | payload, to the end of the last cell |    kEager with the flag kShort
//   body    | tag 8 | length 8 | op 8 | address 8 | slot 4 | number 4 | region 4 | aux 4 |
//           | payload position 4 | payload size 4 |             everything else
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/copy.h"
#include "base/status.h"

namespace oh {

enum class FrameType : uint8_t {
  kNone = 0,
  kEager = 1,  // a message, or its first part: tag, length, op, payload; number, aux = epoch
  kData = 2,   // a later part: op, address = offset, payload; flag kReply: of a get
  kRts = 3,  // ready to send: tag, length, op; slot, number = its sequence, address, region = block
  kCts = 4,  // stream it: op; length = how far, 0: all of it; no part crosses a multiple of
             // address, unless that is 0. The first may be followed by others, that say further
  kReject = 5,      // op ends at its sender: aux = status, length = capacity of the receive
  kRtr = 6,         // ready to receive: tag, number, aux = epoch, length = capacity, slot, op = its
                    // sequence, address, region = block
  kEpoch = 7,       // tag numbers start again: aux = epoch
  kNotify = 8,      // a notification, or its first part: length, op, payload
  kPut = 9,         // write into a region: region, tag = version, address = offset, length, op
  kGet = 10,        // read from a region: the same, number = block
  kAck = 11,        // a put or get ended at the target: op, aux = status; without op: notifications
                    // were collected, length = their credit
  kSignal = 12,     // slot, length = count
  kNack = 13,       // an operation that is over failed at the other side: tag, length, aux = status
  kCredit = 14,     // length = bytes of eager credit given back (channels without a shared word)
  kAbort = 15,      // the sender of op withdraws it: its receive is as if it had never come
  kPad = 16,        // nothing: the ring goes on at its start
  kBatchEnd = 17,   // the sender of a batch has written it: op of its receive, length, number =
                    // path, aux = status
  kReady = 18,      // a message that was announced as kNotYet can go: op
  kKeyWanted = 19,  // the key of a region, for UCX's puts and gets: region, tag = version
  kKey = 20,        // the answer: the same, payload, or aux = why not
  kRetireKey = 21,  // nothing is to begin with that key any more: region, tag = version
  kKeyGone = 22,    // nothing is under way with it any more, and it has been given back: the same
  kFetch = 23,      // an atomic operation on a region: one_sided/atomics.h has its fields
  kFetched = 24,    // the answer: slot, length = what was there, or aux = why not
  kLast = kFetched,
};

enum FrameFlags : uint8_t {
  kShort = 1,     // the payload is in the cells
  kOneSided = 2,  // kData of a put: op, address = offset. kRts: what a kGet with kStaged asked
                  // for can go: op, length, tag = op of the kGet
  kReply = 4,     // kData that answers a kGet: op, number = block, address = offset within it
  kFlush = 8,     // kPut: acknowledge when all puts of this op are visible
  kOffer = 32,    // kAbort: the receive of a batch, op, whose offer has come with tag
  kBySlot = 16,   // kPut, kGet: the bytes go through a transfer: slot, number = its sequence
  kNotYet = 64,   // kRts: earlier work on its memory is not done; kReady follows
  kStaged = 128,  // kPut, kGet: the bytes of the blocks travel as a message: op, length of all of
                  // them; address, or where they are several, payload = {offset 8, length 8} each
};

inline constexpr uint32_t kNoSlot = UINT32_MAX;

struct FrameBody {
  uint64_t tag;
  uint64_t length;
  uint64_t op;
  uint64_t address;
  uint32_t slot;
  uint32_t number;
  uint32_t region;
  uint32_t aux;
  uint32_t payload_position;
  uint32_t payload_size;
};
static_assert(sizeof(FrameBody) == 56);

struct ShortBody {
  uint64_t tag;
  uint8_t payload[48];  // and on, through the cells that follow
};

struct alignas(64) Cell {
  std::atomic<uint64_t> word;
  union {
    FrameBody body;
    ShortBody message;
  };
};
static_assert(sizeof(Cell) == 64 && std::atomic<uint64_t>::is_always_lock_free);

inline constexpr uint64_t cell_word(uint32_t sequence, FrameType type, uint8_t flags,
                                    uint16_t short_size) {
  return static_cast<uint64_t>(sequence) | static_cast<uint64_t>(type) << 32 |
         static_cast<uint64_t>(flags) << 40 | static_cast<uint64_t>(short_size) << 48;
}
inline constexpr FrameType word_type(uint64_t word) {
  return static_cast<FrameType>(static_cast<uint8_t>(word >> 32));
}
inline constexpr uint8_t word_flags(uint64_t word) { return static_cast<uint8_t>(word >> 40); }
inline constexpr size_t word_short_size(uint64_t word) { return word >> 48; }

// A frame as both sides handle it.
struct Frame {
  FrameType type = FrameType::kNone;
  uint8_t flags = 0;
  uint64_t tag = 0;
  uint64_t length = 0;
  uint64_t op = 0;
  uint64_t address = 0;
  uint32_t slot = kNoSlot;
  uint32_t number = 0;
  uint32_t region = 0;
  uint32_t aux = 0;
  const uint8_t* payload = nullptr;
  size_t payload_size = 0;
  uint8_t* ring = nullptr;  // the payload again, where it lies in a ring and may be spoilt
  bool remote = false;      // the payload is with its sender: the channel fetches it
  bool placed = false;      // the channel has put the payload where it goes
  bool eager = false;       // to be sent: a part of a message that its receiver has not asked for
  bool more = false;        // another one follows at once: the channel may let it wait for that

  // Copies the payload out; to a target of `whole` bytes in all.
  void copy_payload(uint8_t* to, uint64_t whole) const {
    if (ring) {
      drain_copy(to, ring, payload_size, whole >= kPastCache);
    } else {
      copy_bytes(to, payload, payload_size);
    }
  }
};

// The error of the other side, as kReject, kAck and kNack carry it; never success.
inline oh_status frame_failure(const Frame& frame) {
  oh_status code = status_from(static_cast<int32_t>(frame.aux), OH_ERR_PROTOCOL);
  return code < 0 ? code : OH_ERR_PROTOCOL;
}

FrameBody body_of(const Frame& frame);

// Fills `frame` from a cell's word and body, without its payload. False if the type is unknown.
bool frame_from(uint64_t word, const FrameBody& body, Frame* frame);

}  // namespace oh
