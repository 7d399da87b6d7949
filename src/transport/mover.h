// SPDX-License-Identifier: Apache-2.0
//
// Mover: reads and writes the other side's memory by its addresses, without the other side's help.
//
// Threading: any thread; calls block for the time of the copy and are made without locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace oh {

struct CopyPiece {
  void* local;
  uint64_t remote;
  size_t size;
};

class Mover {
 public:
  virtual ~Mover() = default;
  // "memcpy" or "process_vm": for explanations.
  virtual const char* name() const = 0;
  // OH_ERR_FAULT when an address is not mapped on either side; OH_ERR_PEER_LOST when it is gone.
  virtual Status read(std::span<const CopyPiece> pieces) = 0;   // remote to local
  virtual Status write(std::span<const CopyPiece> pieces) = 0;  // local to remote
};

}  // namespace oh
