// SPDX-License-Identifier: Apache-2.0
//
// Move: a put or get as it is called for, in parts.
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
  uint64_t count = 0;                  // of blocks, before neighbours became one
  uint64_t bytes = 0;
};

// A put or get as it is called for.
struct Move {
  bool put = false;
  std::span<const MovePart> parts;  // at least one
  BatchPlan* plan = nullptr;        // of a prepared batch, where a kernel copies it
  AfterOption after = {};
  BlockList list = nullptr;               // owns the blocks; null: the caller does, during the call
  const ByteView* notify = nullptr;       // null: none
  Deadline deadline = Deadline::never();  // for earlier work on the local memory
  LocalBuffer* located = nullptr;         // where that of a single part is, if the caller knows
  bool background = false;                // the call copies nothing that may be copied in slices

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const MovePart& part : parts) sum += part.bytes;
    return sum;
  }
};

// A part whose path is known.
struct ChosenPart {
  const MovePart* part;
  LocalBuffer* local;
  Ends ends;
  Path* path;
};

}  // namespace oh
