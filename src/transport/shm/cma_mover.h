// SPDX-License-Identifier: Apache-2.0
//
// Single copies between two processes by process_vm_readv and process_vm_writev. A probe that reads
// a nonce determines whether the kernel permits them.
//
// Threading: any thread.
#pragma once

#include "transport/mover.h"
#include "transport/shm/segment.h"

namespace oh {

class CmaMover final : public Mover {
 public:
  explicit CmaMover(int pid) : pid_(pid) {}
  const char* name() const override { return "process_vm"; }
  Status read(std::span<const CopyPiece> pieces) override;
  Status write(std::span<const CopyPiece> pieces) override;

  // Checks that process `pid` can be read: its `nonce_address` must hold `expected`.
  // OH_ERR_NOT_VIABLE: it cannot, with the reason.
  static Status probe(int pid, uint64_t nonce_address, const uint8_t (&expected)[kNonceSize]);

 private:
  Status move(std::span<const CopyPiece> pieces, bool write);
  template <size_t kMost>
  Status move_by(std::span<const CopyPiece> pieces, bool write);
  int pid_;
};

}  // namespace oh
