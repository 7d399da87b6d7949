// SPDX-License-Identifier: Apache-2.0
//
// Frames: the protocol units that the CPUs of both sides exchange. Channels deliver them in order.
// In a ring a frame is a 64-byte cell. The payload of a short message is in that cell and the cells
// behind it; any other payload is in the payload ring.
//
//   word    sequence 32 | type 8 | flags 8 | short size 16      (stored last, with release)
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
  kCts = 4,  // clear to send up to length (0: all): op; no part crosses a multiple of address (0:
             // any). Further ones raise length
  kReject = 5,     // the receiver refuses op: aux = status, length = capacity of the receive
  kRtr = 6,        // ready to receive: tag, number, aux = epoch, length = capacity, slot, op = its
                   // sequence, address, region = block
  kEpoch = 7,      // numbers of all tags restart at 0: aux = epoch
  kNotify = 8,     // a part of a notification: length (of all), address = offset, payload
  kPut = 9,        // write into a region: region, tag = version, address = offset, length, op
  kGet = 10,       // read from a region: the same, number = block
  kAck = 11,       // a put or get ended at the target: op, aux = status; op 0: returns notification
                   // credit, length
  kSignal = 12,    // slot, length = count
  kNack = 13,      // a completed send failed at the receiver: tag, length = capacity, aux = status
  kCredit = 14,    // length = bytes of eager credit returned (channels without a shared word)
  kAbort = 15,     // the sender withdraws op: its receive is posted again; aux = status
  kPad = 16,       // padding: the ring continues at its start
  kBatchEnd = 17,  // the sender of a batch has written all of it: op of its receive, length, number
                   // = path, aux = status
  kReady = 18,     // a message announced with kNotYet may be streamed: op
  kKeyWanted = 19,  // requests a region's key for UCX's puts and gets: region, tag = version
  kKey = 20,        // the answer: the same, payload; or aux = why there is no key
  kRetireKey = 21,  // the owner retires a key, begin nothing with it: region, tag = version
  kKeyGone = 22,    // no operation with that key is in flight, and it is released: the same
  kFetch = 23,      // an atomic operation on a region: one_sided/atomics.h has its fields
  kFetched = 24,    // the answer: slot, length = previous value, or aux = why it failed
  kLast = kFetched,
};

enum FrameFlags : uint8_t {
  kShort = 1,     // the payload is in the cells
  kOneSided = 2,  // kData of a put: op, address = offset. kRts: announces the bytes of a kGet with
                  // kStaged: op, length, tag = op of the kGet. kAbort: of a put
  kReply = 4,     // kData that answers a kGet: op, number = block, address = offset within it
  kFlush = 8,     // kPut: acknowledge when all puts of this op are visible
  kOffer = 32,    // kAbort: withdraws the receive of a batch, op, which was offered with tag
  kBySlot = 16,   // kPut, kGet: a transfer slot moves the bytes: slot, number = its sequence
  kNotYet = 64,   // kRts: earlier work on the memory is pending; kReady follows
  kStaged = 128,  // kPut, kGet: the blocks travel as one message: op, length of all blocks;
                  // address, or payload = {offset 8, length 8} for each of several blocks
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
  uint8_t payload[48];  // continues in the cells that follow
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

// A decoded frame, to be sent or received.
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
  uint8_t* ring = nullptr;  // the payload in a ring, which drain_copy() may overwrite
  bool remote = false;      // the payload is still at the sender: the channel must fetch it
  bool placed = false;      // the channel has already written the payload to its target
  bool eager = false;       // sending: part of a message that the receiver did not request
  bool more = false;        // sending: another frame follows at once; the channel may pack both

  // Copies the payload to `to`. `whole`: size of the message or put that it is part of.
  void copy_payload(uint8_t* to, uint64_t whole) const {
    if (ring) {
      drain_copy(to, ring, payload_size, whole >= kPastCache);
    } else {
      copy_bytes(to, payload, payload_size);
    }
  }
};

// The peer's error in `aux`, as kReject, kAck and kNack carry it; never success.
inline oh_status frame_failure(const Frame& frame) {
  oh_status code = status_from(static_cast<int32_t>(frame.aux), OH_ERR_PROTOCOL);
  return code < 0 ? code : OH_ERR_PROTOCOL;
}

FrameBody body_of(const Frame& frame);

// Fills `frame` from a cell's word and body, except the payload. False: the type is unknown.
bool frame_from(uint64_t word, const FrameBody& body, Frame* frame);

}  // namespace oh
