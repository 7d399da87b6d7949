// SPDX-License-Identifier: Apache-2.0
//
// MemoryExchange: how the two processes of a link map each other's memory. Each side hands over its
// shared blocks of host memory and its exports of device memory on the control socket, when it
// first names one or when the peer requests it, and retires them before it frees them.
//
// Threading: stated at each function; `lock` is the link's.
#pragma once

#include <functional>
#include <map>
#include <memory>
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
  // Called as blocks of the peer are mapped and retired; without the lock.
  struct Listener {
    std::function<void(const std::shared_ptr<ImportedBlock>&)> mapped;  // null: it cannot be mapped
    std::function<void(uint32_t number)> retired;
  };
  // `connection` is null within the process, where addresses are enough. `process` is the peer's.
  MemoryExchange(Link& link, Connection* connection, const Id& process, Listener listener);

  // With the lock held. Returns the number of the shared block that holds this memory, 0 for none.
  // Hands the block over if the peer has not received it.
  uint32_t block_of(const void* data, uint64_t size);
  // With the lock held. Hands exported device memory over if the peer has not received it.
  // Returns whether the peer's kernels put messages into it.
  bool publish(const std::shared_ptr<const GpuExport>& exported);

  // Any thread. Requests a block of the peer's memory.
  void want_block(uint32_t number);
  // Requests a block unless it is mapped, even if it could not be mapped before. Without the lock.
  void ask_for_block(uint32_t number);
  // Null: not mapped; `failed`: it cannot be mapped. Without the lock.
  std::shared_ptr<ImportedBlock> imported(uint32_t number, bool* failed);
  // A local block is about to be freed: retires it at the peer if it was handed over. Without the
  // lock.
  void retire_block(uint32_t number);
  // Kernels of this side put messages into a block of the peer from now on. Without the lock.
  void tell_reached(uint32_t number);
  // The link is closed: nothing is mapped from now on. Returns what was mapped, for the caller to
  // release without the lock.
  Imports close();

  // Handlers of the peer's messages; on the watcher's thread.
  Status on_block(ByteView payload, std::vector<UniqueFd> fds);
  Status on_block_wanted(ByteView payload);
  Status on_block_retired(ByteView payload);
  Status on_block_reached(ByteView payload);
  Status on_export(ByteView payload, std::vector<UniqueFd> fds, bool first);

 private:
  // An export of device memory that has arrived in part: its descriptors arrive a few at a time.
  struct Arriving {
    uint32_t number = 0;
    ExportRecord record;
    size_t expected = 0;  // descriptors
    std::vector<UniqueFd> fds;
    bool lost = false;  // descriptors did not arrive: the memory cannot be mapped
  };
  Status send_block(uint32_t number);
  Status send_export(const GpuExport& exported);
  void import(uint32_t number, std::shared_ptr<ImportedBlock> block);

  Link& link_;
  Connection* const connection_;
  const Id process_;
  const Listener listener_;
  SharedHeap& heap_;
  struct Handed {
    bool reached = false;  // by the peer's kernels
  };
  std::map<uint32_t, Handed> exported_;  // blocks handed to the peer; guarded by the lock
  bool closed_ = false;                  // guarded by the lock
  std::unique_ptr<Arriving> arriving_;   // only on the watcher's thread
};

}  // namespace oh
