// SPDX-License-Identifier: Apache-2.0
//
// MemoryExchange: how the two processes of a link map each other's memory. Shared blocks of host
// memory and exports of device memory are handed over on the control socket, the first time that
// they are named or when the peer asks for one, and taken back before they are freed.
//
// Threading: as each function says; `lock` is the link's.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "link/connection.h"
#include "link/imports.h"
#include "memory/export_record.h"
#include "memory/gpu_memory.h"
#include "memory/shared_heap.h"

namespace oh {

class Link;

class MemoryExchange {
 public:
  // Is told of the peer's blocks as they come and go; called without the lock.
  struct Listener {
    std::function<void(const std::shared_ptr<ImportedBlock>&)> mapped;  // null: it cannot be mapped
    std::function<void(uint32_t number)> retired;
  };
  // `connection` is null within the process, where addresses are enough. `process` is the peer's.
  MemoryExchange(Link& link, Connection* connection, const Id& process, Listener listener);

  // With the lock held. The number of the shared block that holds this memory, 0 for none; the peer
  // gets to know the block.
  uint32_t block_of(const void* data, uint64_t size);
  // Makes sure that the peer gets to know exported device memory.
  void publish(const std::shared_ptr<const GpuExport>& exported);

  // Any thread. Asks the peer for a block of its memory.
  void want_block(uint32_t number);
  // The same, of one that may be mapped already, or was refused before; without the lock.
  void ask_for_block(uint32_t number);
  // Null: not there; `failed` says whether it will not come.
  std::shared_ptr<ImportedBlock> imported(uint32_t number, bool* failed);
  // A block of ours is about to go; the peer hears of it if it knows the block.
  void retire_block(uint32_t number);
  // The link is closed: nothing is mapped from now on. What was, for the caller to let go of.
  Imports close();

  // Messages of the peer; the watcher's thread.
  Status on_block(ByteView payload, std::vector<UniqueFd> fds);
  Status on_block_wanted(ByteView payload);
  void on_block_retired(ByteView payload);
  Status on_export(ByteView payload, std::vector<UniqueFd> fds, bool first);

 private:
  // Exported device memory that is on its way: its descriptors come a few at a time.
  struct Arriving {
    uint32_t number = 0;
    ExportRecord record;
    size_t expected = 0;  // descriptors
    std::vector<UniqueFd> fds;
    bool lost = false;  // some of them: it cannot be mapped
  };
  Status send_block(uint32_t number);
  Status send_export(const GpuExport& exported);
  Status import(uint32_t number, std::shared_ptr<ImportedBlock> block);

  Link& link_;
  Connection* const connection_;
  const Id process_;
  const Listener listener_;
  SharedHeap& heap_;
  std::set<uint32_t> exported_;         // blocks that the peer knows; guarded by the lock
  bool closed_ = false;                 // the same
  std::unique_ptr<Arriving> arriving_;  // only on the watcher's thread
};

}  // namespace oh
