// SPDX-License-Identifier: Apache-2.0
#include "path/direct/copy_path.h"

#include <cstring>
#include <utility>

namespace oh {

Estimate estimate_copy(const LinkFacts& facts, const Ends& ends) {
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

Status copy_mapped(const Part& part, bool put) {
  for (const Block& block : part.blocks) {
    uint8_t* remote = part.import->translate(part.target.base + block.remote_offset, block.size);
    if (!remote) return error(OH_ERR_RANGE, "the block lies outside of the mapped memory");
    std::memcpy(put ? remote : block.local, put ? block.local : remote, block.size);
  }
  return {};
}

CopyPiece piece_of(const Part& part, const Block& block) {
  return {block.local, part.target.base + block.remote_offset, block.size};
}

// Copies the blocks of all unmapped parts, across regions, with as few system calls as possible.
// Not inlined into CopyPath::copy(): its stack frame would hold the pieces even for a single block.
[[gnu::noinline]] Status move_blocks(Mover& mover, const Movement& movement) {
  constexpr size_t kAtOnce = 1024;
  CopyPiece pieces[kAtOnce];
  size_t count = 0;
  auto flush = [&] {
    const std::span<const CopyPiece> some(pieces, std::exchange(count, 0));
    if (some.empty()) return Status();
    return movement.put ? mover.write(some) : mover.read(some);
  };
  for (const Part& part : movement.parts) {
    if (part.import) continue;
    for (const Block& block : part.blocks) {
      pieces[count++] = piece_of(part, block);
      if (count == kAtOnce) OH_RETURN_IF_ERROR(flush());
    }
  }
  return flush();
}

Status move_block(Mover& mover, const CopyPiece& piece, bool put) {
  return put ? mover.write({&piece, 1}) : mover.read({&piece, 1});
}

}  // namespace

Result<oh_path> CopyPath::copy(const Movement& movement) {
  bool mapped = true;
  for (const Part& part : movement.parts) {
    if (part.import) OH_RETURN_IF_ERROR(copy_mapped(part, movement.put));
    mapped = mapped && part.import;
  }
  if (mapped) return link_.path;
  const Part& first = movement.parts.front();
  const bool one = movement.parts.size() == 1 && first.blocks.size() == 1;
  OH_RETURN_IF_ERROR(
      one ? move_block(*link_.mover, piece_of(first, first.blocks.front()), movement.put)
          : move_blocks(*link_.mover, movement));
  return link_.path;
}

}  // namespace oh
