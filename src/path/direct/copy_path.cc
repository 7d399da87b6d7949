// SPDX-License-Identifier: Apache-2.0
#include "path/direct/copy_path.h"

#include <cstring>
#include <optional>
#include <utility>

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

Status copy_mapped(const Part& part, bool put) {
  for (const Block& block : part.blocks) {
    uint8_t* remote = part.import->translate(part.target.base + block.remote_offset, block.size);
    if (!remote) return error(OH_ERR_RANGE, "the block lies outside of the mapped memory");
    std::memcpy(put ? remote : block.local, put ? block.local : remote, block.size);
  }
  return {};
}

// Collects blocks, of whatever regions, for as few calls as possible.
class Pieces {
 public:
  Pieces(Mover& mover, bool put) : mover_(mover), put_(put) {}
  Status add(const RemoteTarget& target, const Block& block) {
    pieces_[count_++] = {block.local, target.base + block.remote_offset, block.size};
    return count_ == kAtOnce ? flush() : Status();
  }
  Status flush() {
    const std::span<const CopyPiece> some(pieces_, std::exchange(count_, 0));
    if (some.empty()) return {};
    return put_ ? mover_.write(some) : mover_.read(some);
  }

 private:
  static constexpr size_t kAtOnce = 1024;
  Mover& mover_;
  const bool put_;
  size_t count_ = 0;
  CopyPiece pieces_[kAtOnce];  // not cleared
};

}  // namespace

Result<oh_path> CopyPath::copy(const Movement& movement) {
  const bool put = movement.put;
  std::optional<Pieces> pieces;
  for (const Part& part : movement.parts) {
    if (part.import) {
      OH_RETURN_IF_ERROR(copy_mapped(part, put));
      continue;
    }
    if (!pieces) pieces.emplace(*link_.mover, put);
    for (const Block& block : part.blocks) OH_RETURN_IF_ERROR(pieces->add(part.target, block));
  }
  if (pieces) OH_RETURN_IF_ERROR(pieces->flush());
  return link_.path;
}

}  // namespace oh
