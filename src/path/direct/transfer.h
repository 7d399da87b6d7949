// SPDX-License-Identifier: Apache-2.0
//
// Transfer: one direct transfer, as one side sees it: a slot of the segment in use, its chunks, and
// who copies them.
//
// Threading: guarded by the link's lock, but for copies, which are made without it; what both sides
// share is in the slot.
#pragma once

#include <memory>

#include "base/list.h"
#include "base/status.h"
#include "link/link.h"

namespace oh {

struct InPostedTransfers;
struct InActiveTransfers;

// One side's view of a slot in use.
struct Transfer : ListNode<InPostedTransfers>, ListNode<InActiveTransfers> {
  TransferSlot* slot = nullptr;
  uint32_t index = 0;
  uint32_t sequence = 0;
  bool owner = false;    // the slot is ours
  bool source = false;   // our buffer is the source
  uint32_t copiers = 0;  // threads of ours that copy right now
  uint32_t lines = 0;    // of the pipes, that our engine copies
  uint8_t* local = nullptr;
  uint64_t remote = 0;
  uint64_t length = 0;
  uint64_t chunk = 0;  // bytes a chunk; 0: not decided yet
  oh_path path = OH_PATH_NONE;
  bool within_process = false;
  uint8_t* mapped = nullptr;  // their buffer, where it is mapped here
  std::shared_ptr<ImportedBlock> import;
  // Where device memory takes part.
  bool on_device = false;      // either buffer is
  bool local_device = false;   // ours is
  uint32_t remote_memory = 0;  // SlotMemory of their buffer
  uint32_t remote_block = 0;
  CopyMode mode = CopyMode::kUndecided;
  cuda::Stream stream = nullptr;  // of what we have enqueued; null: the worker's
  bool engine_copies = false;     // our engine copies: DONE comes from the device
  bool awaited = false;           // streams of ours wait for the word; their engine copies
  int64_t looked = 0;             // when it was begun, or last asked for errors
  Request* request = nullptr;     // nullptr once it has ended without the transfer
  Status failure;                 // why our side ended it

  uint64_t chunks() const { return (length + chunk - 1) / chunk; }
  // Takes up to `most` chunks next to each other, from either end; how many.
  uint32_t take_chunks(bool from_back, uint32_t most, uint64_t* offset, uint64_t* size);
  bool all_taken() const;
  // So many more are through; true if they were the last and the slot is DONE now.
  bool account(uint64_t chunks);
  // The first failure of a transfer is the one that both sides hear.
  void fail(const Status& status);
  // No chunk is handed out any more; those that were not count as through.
  void stop(oh_status status);
  // Takes in who copies, as the claimer has said it.
  void learn();
  // Says who copies, unless that has been said: then that is learned.
  void set_mode(CopyMode wanted);
  bool by_pipe() const { return mode == CopyMode::kRelay || mode == CopyMode::kStaged; }
  // Our part in it ends: streams of ours that wait for DONE, which may never come, go on.
  void let_streams_pass() {
    if (awaited) slot_leave(*slot, sequence);
    awaited = false;
  }
  // An engine of ours is at it.
  bool with_engine() const { return engine_copies || lines > 0; }
};

// Runs what may block or takes long without the link's lock; the transfer stays meanwhile.
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
