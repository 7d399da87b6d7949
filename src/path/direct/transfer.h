// SPDX-License-Identifier: Apache-2.0
//
// Transfer: one side's view of a direct transfer: the slot of the segment that it uses, its chunks,
// and which side copies them.
//
// Threading: guarded by the link's lock; copies run without it. The slot holds all state that both
// sides share.
#pragma once

#include <memory>

#include "base/list.h"
#include "base/status.h"
#include "link/link.h"

namespace oh {

struct InPostedTransfers;
struct InActiveTransfers;

struct Transfer : ListNode<InPostedTransfers>, ListNode<InActiveTransfers> {
  TransferSlot* slot = nullptr;
  uint32_t index = 0;
  uint32_t sequence = 0;
  bool owner = false;    // this side posted the slot
  bool source = false;   // the local buffer is the source
  uint32_t copiers = 0;  // local threads that are copying
  uint32_t lines = 0;    // lines of the pipes that the local engine is copying
  uint8_t* local = nullptr;
  uint64_t remote = 0;
  uint64_t length = 0;
  uint64_t chunk = 0;  // bytes per chunk; 0: not decided yet
  oh_path path = OH_PATH_NONE;
  bool within_process = false;
  uint8_t* mapped = nullptr;  // the remote buffer, if it is mapped here
  std::shared_ptr<ImportedBlock> import;
  // If device memory takes part.
  bool on_device = false;      // either buffer is
  bool local_device = false;   // the local buffer is
  uint32_t local_memory = 0;   // SlotMemory of the local buffer, as the slot says it
  uint32_t remote_memory = 0;  // the same of the remote buffer
  uint32_t remote_block = 0;
  CopyMode mode = CopyMode::kUndecided;
  cuda::Stream stream = nullptr;  // of the local engine's copy; null: the worker's
  bool engine_copies = false;     // the local engine copies, and the device writes DONE
  bool awaited = false;           // local streams wait for the word; the peer's engine copies
  int64_t looked = 0;             // when the copy began, or errors were last queried
  Request* request = nullptr;     // nullptr once it has completed before the transfer
  Status failure;                 // why this side ended the transfer

  uint64_t chunks() const { return (length + chunk - 1) / chunk; }
  // Takes up to `most` adjacent chunks from either end. Returns how many.
  uint32_t take_chunks(bool from_back, uint32_t most, uint64_t* offset, uint64_t* size);
  bool all_taken() const;
  // Counts `chunks` more as finished. True if they were the last, so that the slot is DONE now.
  bool account(uint64_t chunks);
  // Records a failure. Both sides report the first one of a transfer.
  void fail(const Status& status);
  // Hands out no more chunks. The remaining ones count as finished, with `status` as their failure.
  void stop(oh_status status);
  // Reads the copy mode from the slot, if it is set, and derives chunk size and path from it.
  void learn();
  // Sets the slot's copy mode unless it is set already; either way the transfer has a mode then.
  void set_mode(CopyMode wanted);
  void take_mode(CopyMode said);
  bool between_devices() const { return local_device && (remote_memory & kSlotDevice) != 0; }
  bool by_pipe() const { return mode == CopyMode::kRelay || mode == CopyMode::kStaged; }
  // This side leaves the transfer: releases local streams that wait for DONE, which may never be
  // written.
  void let_streams_pass() {
    if (awaited) slot_leave(*slot, sequence);
    awaited = false;
  }
  // Whether the local engine is copying.
  bool with_engine() const { return engine_copies || lines > 0; }
};

// Runs work that may block or take long without the link's lock. The transfer stays alive
// meanwhile.
template <typename Work>
auto without_lock(Link& link, Transfer& transfer, const Work& work) {
  ++transfer.copiers;
  struct Copier {
    ~Copier() { --transfer.copiers; }
    Transfer& transfer;
  } copier{transfer};
  return link.without_lock(work);
}

}  // namespace oh
