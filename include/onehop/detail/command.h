// SPDX-License-Identifier: Apache-2.0
//
// Commands from the host to a kernel that stays on the GPU, and the words that say they are done.
//
//   command   lane 0 | lane 1 | lane 2 | lane 3     64 bytes, in host memory
//   lane      payload 8 | payload 4 | flag 4        the flag of the lap and epoch, written last
//   done      8 bytes, where the command says       behind all that the command did
//   through   epoch 8 | count 56                    likewise; gives the producer its slots back
//
//   producer: the slot is free ? of each lane the payload, then the flag
//   consumer: all four flags agree ? carry it out, fence, done word, through
//
// Four threads of a warp read the four lanes with one load: nothing has to come over the bus twice.
//
// Threading: one producing thread and one consuming side at a time. Each knows its own position; a
// consumer that follows another goes on at the producer's count of `through`.
#pragma once

#include <string.h>

#include "onehop/detail/word.h"

namespace onehop::detail {

enum CommandKind : uint32_t {
  kCommandCopy = 1,
  kCommandLeave = 2,  // the consumer finishes this command and goes
};

// Addresses are the consumer's.
struct Command {
  uint64_t source;
  uint64_t target;
  uint64_t bytes;
  uint64_t done;       // of the done word; 0: none
  uint64_t done_word;  // what is stored there: it differs from what was there before
  uint32_t kind;       // CommandKind
  uint32_t reserved;
};
static_assert(sizeof(Command) == 48, "three quarters of a slot");

inline constexpr uint32_t kLanes = 4;
inline constexpr uint32_t kLaneWords = 3;  // of payload, 4 bytes each

struct alignas(64) CommandSlot {
  Pair lanes[kLanes];
};
static_assert(sizeof(CommandSlot) == 64, "one line of host memory");

struct CommandRing {
  CommandSlot* slots;  // 2^shift of them
  uint64_t* through;   // on a line of its own: the consumer writes it
  uint32_t shift;
  uint8_t epoch;
};

// The slot is known to be free. A release a lane: pairs with read_lane().
template <typename A>
ONEHOP_PROTOCOL void store_command(const CommandRing& ring, uint64_t position,
                                   const Command& command) {
  uint32_t words[kLanes * kLaneWords];
  memcpy(words, &command, sizeof(words));
  uint64_t flag = static_cast<uint64_t>(flag_at(ring.epoch, ring.shift, position)) << 32;
  CommandSlot& slot = ring.slots[place_of(ring.shift, position)];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t* payload = &words[lane * kLaneWords];
    A::store_lane(&slot.lanes[lane],
                  {static_cast<uint64_t>(payload[1]) << 32 | payload[0], flag | payload[2]});
  }
}

// False: the slot's last command is not done yet. Acquire of `through`: pairs with
// finish_command().
template <typename A>
ONEHOP_PROTOCOL bool write_command(const CommandRing& ring, uint64_t position,
                                   const Command& command) {
  if (!fits(ring.shift, position, 1, poll<A>(ring.through, ring.epoch))) return false;
  store_command<A>(ring, position, command);
  return true;
}

// A lane's payload. False: it is not this position's. Acquire: pairs with write_command().
template <typename A>
ONEHOP_PROTOCOL bool read_lane(const CommandRing& ring, uint64_t position, uint32_t lane,
                               uint32_t* payload) {
  const CommandSlot& slot = ring.slots[place_of(ring.shift, position)];
  Pair seen = A::load_lane(&slot.lanes[lane]);
  payload[0] = static_cast<uint32_t>(seen.low);
  payload[1] = static_cast<uint32_t>(seen.low >> 32);
  payload[2] = static_cast<uint32_t>(seen.high);
  return seen.high >> 32 == flag_at(ring.epoch, ring.shift, position);
}

// All lanes by one thread. False: the command is not there yet, or not all of it.
template <typename A>
ONEHOP_PROTOCOL bool read_command(const CommandRing& ring, uint64_t position, Command* command) {
  uint32_t words[kLanes * kLaneWords];
  bool whole = true;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    whole &= read_lane<A>(ring, position, lane, &words[lane * kLaneWords]);
  }
  if (whole) memcpy(command, words, sizeof(words));
  return whole;
}

// An acquire of one of the two words sees what was done. One thread, behind a barrier of all that
// took part. The slot is free, and what the command read may be written, from here on.
template <typename A>
ONEHOP_PROTOCOL void finish_command(const CommandRing& ring, uint64_t position,
                                    const Command& command) {
  A::fence();
  if (command.done != 0) {
    A::store_behind_fence(reinterpret_cast<uint64_t*>(command.done), command.done_word);
  }
  A::store_behind_fence(ring.through, make_word(ring.epoch, position + 1));
}

}  // namespace onehop::detail
