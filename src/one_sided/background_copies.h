// SPDX-License-Identifier: Apache-2.0
//
// BackgroundCopies: puts and gets that local threads copy after the call has returned. Threads that
// make progress copy them in slices, in FIFO order, one slice per link at a time.
//
//   push() ──▶ queue_ ──▶ begin_slice() ── copy() without the lock ── end_slice() ──▶ moved()
//                 ▲                                                        │
//                 └──────────────────── more slices ───────────────────────┘
//
// An operation must not change while a thread copies a slice of it: code that ends an operation
// calls stop() first.
//
// Threading: guarded by the link's lock, except copy_slice(), has_slice() and any().
#pragma once

#include <atomic>
#include <deque>

#include "one_sided/immediate_copies.h"

namespace oh {

class BackgroundCopies final : public Path {
 public:
  BackgroundCopies(const PathContext& context, ImmediateCopies& copies)
      : Path(context), copies_(copies) {}

  // Takes over an operation that is about to be queued and whose chosen path is immediate.
  void add(Operation& operation, const ChosenPart& chosen);
  // Whether there are any: later operations must queue behind them. Any thread.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }

  // Whether a slice is ready to be copied. Any thread.
  bool has_slice() const { return ready_.load(std::memory_order_relaxed); }
  // Copies a slice. False: none is ready, or another thread copies one. The next progress pushes
  // the operations that wait for its end.
  bool copy_slice() OH_EXCLUDES(link_.lock) { return has_slice() && copy_next_slice(); }
  // Whether a thread copies a slice.
  bool busy() const { return current_ != nullptr; }
  // Waits until no thread copies a slice, and releases the lock meanwhile. Afterwards no slice
  // begins until the caller releases the lock.
  void stop() OH_NO_THREAD_ANALYSIS;

  bool push(Operation& operation) override;
  bool travels_apart(const Operation&) const override { return true; }
  void fail(Operation& operation, const Status&) override { forget(operation); }
  void forget(Operation& operation) override;
  bool idle() const override { return queue_.empty(); }

 private:
  // A slice of the first operation in the queue.
  struct Slice {
    Operation* operation = nullptr;
    Block cut;  // part of a block that is longer than a slice
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
  std::atomic<bool> ready_{false};  // a slice is ready to be copied
};

}  // namespace oh
