// SPDX-License-Identifier: Apache-2.0
//
// Move: the arguments of a put or get, in parts.
//
// Threading: values.
#pragma once

#include <span>

#include "device/batch_plan.h"
#include "path/path.h"

namespace oh {

// The blocks of a put or get between one piece of local memory and one remote region.
struct MovePart {
  const RemoteTarget& target;
  const void* data = nullptr;  // the local memory of all blocks
  uint64_t size = 0;
  std::span<const Block> blocks = {};  // none is empty
  uint64_t count = 0;                  // number of blocks before adjacent ones were merged
  uint64_t bytes = 0;
};

// The arguments of a put or get.
struct Move {
  bool put = false;
  std::span<const MovePart> parts;  // at least one
  BatchPlan* plan = nullptr;        // of a prepared batch that a kernel copies
  AfterOption after = {};
  BlockList list = nullptr;          // owns the blocks; null: the caller owns them during the call
  const ByteView* notify = nullptr;  // the notification to send; null: none
  Deadline deadline = Deadline::never();  // limit of the wait for earlier work on the local memory
  LocalBuffer* located = nullptr;         // memory of a single part, if the caller has located it
  bool background = false;  // the call leaves copies that may be sliced to BackgroundCopies

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const MovePart& part : parts) sum += part.bytes;
    return sum;
  }
};

// A part and the path chosen for it.
struct ChosenPart {
  const MovePart* part;
  LocalBuffer* local;
  Ends ends;
  Path* path;
};

}  // namespace oh
