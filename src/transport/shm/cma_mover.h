// SPDX-License-Identifier: Apache-2.0
//
// Single copies between two processes by process_vm_readv and process_vm_writev. Whether the kernel
// permits them is found out by reading a nonce, never guessed.
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

  // Whether process `pid` can be read: `nonce_address` there must hold `expected`.
  static Status probe(int pid, uint64_t nonce_address, const uint8_t (&expected)[kNonceSize]);

 private:
  Status move(std::span<const CopyPiece> pieces, bool write);
  template <size_t kMost>
  Status move_by(std::span<const CopyPiece> pieces, bool write);
  int pid_;
};

}  // namespace oh
