// SPDX-License-Identifier: Apache-2.0
//
// BackgroundCopies: puts and gets whose call returns before their bytes have moved, though a thread
// of ours copies them. Threads that make progress copy them in slices, first in, first out, one
// slice of a link at a time.
//
//   push() ──▶ queue_ ──▶ begin_slice() ── copy() without the lock ── end_slice() ──▶ moved()
//                 ▲                                                        │
//                 └──────────────────── more slices ───────────────────────┘
//
// An operation stays as it is while a thread copies a slice of it: who ends it calls stop() first.
//
// Threading: guarded by the link's lock, but for copy_slice(), has_slice() and any().
#pragma once

#include <atomic>
#include <deque>

#include "one_sided/immediate_copies.h"

namespace oh {

class BackgroundCopies final : public Path {
 public:
  BackgroundCopies(const PathContext& context, ImmediateCopies& copies)
      : Path(context), copies_(copies) {}

  // An operation that is about to be queued, whose path would copy it at once.
  void add(Operation& operation, const ChosenPart& chosen);
  // Whether there are any: later ones keep their place behind them. Any thread.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }

  // Whether a slice waits for a thread. Any thread.
  bool has_slice() const { return ready_.load(std::memory_order_relaxed); }
  // Copies a slice; false: there is none, or another thread is at one. What waits for its end is
  // pushed by the next progress.
  bool copy_slice() OH_EXCLUDES(link_.lock) { return has_slice() && copy_next_slice(); }
  // Whether a thread copies a slice.
  bool busy() const { return current_ != nullptr; }
  // Waits until no thread does; the lock is let go meanwhile. None begins while it is held then.
  void stop() OH_NO_THREAD_ANALYSIS;

  bool push(Operation& operation) override;
  bool travels_apart(const Operation&) const override { return true; }
  void fail(Operation& operation, const Status&) override { forget(operation); }
  void forget(Operation& operation) override;
  bool idle() const override { return queue_.empty(); }

 private:
  // Of the first operation.
  struct Slice {
    Operation* operation = nullptr;
    Block cut;  // of a block that is longer than a slice
    std::span<const Block> blocks;
    uint64_t bytes = 0;
    Status status;
    oh_path taken = OH_PATH_NONE;
  };
  bool copy_next_slice();
  bool begin_slice(Slice* slice);
  void copy(Slice* slice);
  void end_slice(const Slice& slice);
  void update() { ready_.store(!current_ && !queue_.empty(), std::memory_order_relaxed); }

  ImmediateCopies& copies_;
  std::deque<Operation*> queue_;
  Operation* current_ = nullptr;    // a thread copies a slice of it
  uint32_t stopping_ = 0;           // threads in stop()
  std::atomic<uint32_t> count_{0};  // operations that were added and have not ended
  std::atomic<bool> ready_{false};  // a slice waits for a thread
};

}  // namespace oh
