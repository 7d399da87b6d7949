// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/cma_mover.h"

#include <errno.h>
#include <limits.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include "platform/os/os.h"

namespace oh {

Status CmaMover::read(std::span<const CopyPiece> pieces) { return move(pieces, false); }
Status CmaMover::write(std::span<const CopyPiece> pieces) { return move(pieces, true); }

// Nearly all copies have one piece: that case avoids the stack pages of two long vectors.
Status CmaMover::move(std::span<const CopyPiece> pieces, bool write) {
  return pieces.size() == 1 ? move_by<1>(pieces, write) : move_by<IOV_MAX>(pieces, write);
}

// Moves up to kMost pieces per system call. noinline: each size has its own stack frame.
template <size_t kMost>
[[gnu::noinline]] Status CmaMover::move_by(std::span<const CopyPiece> pieces, bool write) {
  iovec local[kMost];
  iovec remote[kMost];
  size_t offset = 0;  // bytes of the first piece that are already moved
  while (true) {
    // Skip finished and empty pieces: a call with only empty ones moves 0 bytes, like a fault.
    while (!pieces.empty() && pieces.front().size == offset) {
      offset = 0;
      pieces = pieces.subspan(1);
    }
    if (pieces.empty()) return {};
    size_t count = std::min(pieces.size(), kMost);
    for (size_t i = 0; i < count; ++i) {
      const CopyPiece& piece = pieces[i];
      size_t skip = i == 0 ? offset : 0;
      local[i] = {static_cast<uint8_t*>(piece.local) + skip, piece.size - skip};
      remote[i] = {reinterpret_cast<void*>(piece.remote + skip), piece.size - skip};
    }
    int64_t moved = write ? os().process_vm_writev(pid_, local, count, remote, count)
                          : os().process_vm_readv(pid_, local, count, remote, count);
    if (moved == -EINTR) continue;
    const char* call = write ? "process_vm_writev" : "process_vm_readv";
    if (moved == -ESRCH) {
      return error(OH_ERR_PEER_LOST, "%s: process %d is gone", call, pid_);
    }
    if (moved <= 0) {
      return Status::from_errno(
          OH_ERR_FAULT, moved < 0 ? static_cast<int>(-moved) : EFAULT,
          strf("%s of %zu bytes at 0x%llx in process %d to or from %p here", call,
               pieces.front().size - offset,
               static_cast<unsigned long long>(pieces.front().remote + offset), pid_,
               static_cast<void*>(static_cast<uint8_t*>(pieces.front().local) + offset)));
    }
    // The kernel may stop anywhere: at 2 GiB, or at the first byte that it cannot access.
    auto left = static_cast<size_t>(moved);
    while (!pieces.empty() && left >= pieces.front().size - offset) {
      left -= pieces.front().size - offset;
      offset = 0;
      pieces = pieces.subspan(1);
    }
    offset += left;
  }
}

Status CmaMover::probe(int pid, uint64_t nonce_address, const uint8_t (&expected)[kNonceSize]) {
  if (pid <= 0) {
    return error(OH_ERR_NOT_VIABLE, "the peer's process is not visible from this PID namespace");
  }
  uint8_t read[kNonceSize] = {};
  iovec local{read, sizeof(read)};
  iovec remote{reinterpret_cast<void*>(nonce_address), sizeof(read)};
  int64_t got = os().process_vm_readv(pid, &local, 1, &remote, 1);
  if (got < 0) {
    Status failed = Status::from_errno(OH_ERR_NOT_VIABLE, static_cast<int>(-got),
                                       strf("process_vm_readv of process %d", pid));
    if (got != -EPERM) return failed;
    return error(OH_ERR_NOT_VIABLE,
                 "%s; the kernel grants it to those who may trace that process: of one user and "
                 "user namespace, without a ban by Yama or a seccomp filter",
                 failed.text().c_str());
  }
  if (got != static_cast<int64_t>(sizeof(read)) || std::memcmp(read, expected, sizeof(read)) != 0) {
    return error(OH_ERR_NOT_VIABLE,
                 "process_vm_readv of process %d read something else than the peer's nonce", pid);
  }
  return {};
}

}  // namespace oh
