// SPDX-License-Identifier: Apache-2.0
//
// Copies within one process, where the peer's addresses are valid locally.
//
// Threading: any thread.
#pragma once

#include <cstring>

#include "transport/mover.h"

namespace oh {

class LocalMover final : public Mover {
 public:
  const char* name() const override { return "memcpy"; }
  Status read(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) {
      std::memmove(piece.local, reinterpret_cast<const void*>(piece.remote), piece.size);
    }
    return {};
  }
  Status write(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) {
      std::memmove(reinterpret_cast<void*>(piece.remote), piece.local, piece.size);
    }
    return {};
  }
};

}  // namespace oh
