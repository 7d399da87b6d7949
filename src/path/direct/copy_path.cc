// SPDX-License-Identifier: Apache-2.0
#include "path/direct/copy_path.h"

#include <algorithm>
#include <cstring>

namespace oh {

Estimate estimate_direct(const LinkFacts& facts, const Ends& ends) {
  const bool shared = ends.remote == MemoryKind::kShared;
  if (on_device(ends.local) || on_device(ends.remote) || !facts.segment ||
      !(shared || facts.we_reach_them)) {
    return {};
  }
  const char* why = facts.same_process ? "one copy by plain addresses"
                    : shared           ? "one copy through the mapped block"
                                       : "one copy by process_vm_readv/writev";
  return {.cost = {.viable = true, .latency_us = 0.2F, .bytes_per_us = 10e3F},
          .choice = {bulk_path(facts), Method::kDirect, why}};
}

namespace {

// Apart from CopyPath::copy(), whose frame would hold the pieces when there is one block, too.
[[gnu::noinline]] Status move_blocks(Mover& mover, const RemoteTarget& target,
                                     std::span<const Block> blocks, bool put) {
  constexpr size_t kAtOnce = 1024;
  CopyPiece pieces[kAtOnce];
  while (!blocks.empty()) {
    size_t count = 0;
    for (const Block& block : blocks.first(std::min(kAtOnce, blocks.size()))) {
      pieces[count++] = {block.local, target.base + block.remote_offset, block.size};
    }
    blocks = blocks.subspan(count);
    std::span<const CopyPiece> some(pieces, count);
    OH_RETURN_IF_ERROR(put ? mover.write(some) : mover.read(some));
  }
  return {};
}

Status move_block(Mover& mover, const RemoteTarget& target, const Block& block, bool put) {
  const CopyPiece piece{block.local, target.base + block.remote_offset, block.size};
  return put ? mover.write({&piece, 1}) : mover.read({&piece, 1});
}

}  // namespace

Result<oh_path> CopyPath::copy(const RemoteTarget& target, const ImportedBlock* import,
                               LocalBuffer&, const Movement& movement) {
  const bool put = movement.put;
  std::span<const Block> blocks = movement.blocks;
  if (import) {
    for (const Block& block : blocks) {
      uint8_t* remote = import->translate(target.base + block.remote_offset, block.size);
      if (!remote) return error(OH_ERR_RANGE, "the block lies outside of the mapped memory");
      std::memcpy(put ? remote : block.local, put ? block.local : remote, block.size);
    }
    return link_.path;
  }
  OH_RETURN_IF_ERROR(blocks.size() == 1 ? move_block(*link_.mover, target, blocks.front(), put)
                                        : move_blocks(*link_.mover, target, blocks, put));
  return link_.path;
}

}  // namespace oh
