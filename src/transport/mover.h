// SPDX-License-Identifier: Apache-2.0
//
// Mover: reads and writes the peer's memory by the peer's addresses, without the peer's progress.
//
// Threading: any thread; calls block for the time of the copy. Precondition: no lock held.
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
  // "memcpy" or "process_vm", for explain texts.
  virtual const char* name() const = 0;
  // OH_ERR_FAULT: an address is not mapped on its side. OH_ERR_PEER_LOST: the process has ended.
  virtual Status read(std::span<const CopyPiece> pieces) = 0;   // remote to local
  virtual Status write(std::span<const CopyPiece> pieces) = 0;  // local to remote
};

}  // namespace oh
