// SPDX-License-Identifier: Apache-2.0
//
// Command ring from the host to a kernel that stays resident on the GPU, and the words by which the
// kernel reports completion.
//
//   command   lane 0 | lane 1 | lane 2 | lane 3     64 bytes, in host memory
//   lane      payload 8 | payload 4 | flag 4        the flag holds lap and epoch
//   done      8 bytes, at the command's address     stored after all effects of the command
//   through   epoch 8 | count 56                    likewise; returns slots to the producer
//
//   producer: wait until the slot is free; store each lane, payload and flag
//   consumer: wait until all four flags match; execute, fence, done word, through
//
// Four threads of a warp read the four lanes with one load, so a command crosses the bus once.
//
// Threading: one producer thread and one consumer at a time. Each keeps its own position. A
// consumer that replaces another starts at the count of `through`.
#pragma once

#include <string.h>

#include "onehop/detail/word.h"

namespace onehop::detail {

enum CommandKind : uint32_t {
  kCommandCopy = 1,
  kCommandLeave = 2,  // the consumer finishes this command and exits
};

// Addresses are valid on the consumer's GPU.
struct Command {
  uint64_t source;
  uint64_t target;
  uint64_t bytes;
  uint64_t done;       // address of the done word; 0: none
  uint64_t done_word;  // value to store there; it differs from the previous one
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
  uint64_t* through;   // on its own cache line, because the consumer writes it
  uint32_t shift;
  uint8_t epoch;
};

// Writes a command. Precondition: the slot is free. Each lane is a release store: pairs with
// read_lane().
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

// Returns false while the slot's previous command is unfinished. Acquire of `through`: pairs with
// finish_command().
template <typename A>
ONEHOP_PROTOCOL bool write_command(const CommandRing& ring, uint64_t position,
                                   const Command& command) {
  if (!fits(ring.shift, position, 1, poll<A>(ring.through, ring.epoch))) return false;
  store_command<A>(ring, position, command);
  return true;
}

// Reads a lane's payload. Returns false if it belongs to another position. Acquire: pairs with
// store_command().
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

// One thread reads all lanes. Returns false if the command has not arrived completely.
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

// Completes a command. One thread calls it, after a barrier of all threads that executed the
// command. An acquire of either word makes the command's effects visible; the slot is then free,
// and the memory that the command read may be overwritten.
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
