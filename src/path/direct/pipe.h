// SPDX-License-Identifier: Apache-2.0
//
// Pipe: transfers through host memory, or through a slab on the sink's GPU. The source fills spans
// of the outgoing pipe, and the sink drains them in order; several are in flight at once. A side
// whose buffer is on a device copies by its engine, and the device writes the span's word after the
// copy.
//
//   source: take chunks, take lines, copy, word = full        sink: copy, word = empty, count
//
// Threading: guarded by the link's lock; copies run without it.
#pragma once

#include <deque>

#include "path/direct/transfer.h"

namespace oh {

class SpanSinks {
 public:
  virtual ~SpanSinks() = default;
  // The transfer that a span belongs to; null unless this side is its sink and it is still active.
  virtual Transfer* sink_of(const PipeSpan& span) = 0;
};

class Pipe {
 public:
  Pipe(Link& link, SpanSinks& sinks) : link_(link), sinks_(sinks) {}

  // How many lines of the outgoing pipe the transfer may fill with one copy.
  uint32_t free_lines(const Transfer& transfer);
  // Copies the next chunks of a source into a span, or enqueues the copy. True if there were any.
  bool fill(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  // Copies the next full span out of the incoming pipe, or enqueues the copy. True if there was
  // one.
  bool drain() OH_NO_THREAD_ANALYSIS;
  // Counts the spans that the local engine has finished.
  bool retire();
  // Whether a copy of the local engine takes so long that check() is due.
  bool is_late() const { return is_late(filling_) || is_late(draining_); }
  // Queries the driver for errors of the engine. True when the device is lost.
  bool check() OH_NO_THREAD_ANALYSIS;
  // The device is lost: fails all copies of its engine.
  void give_up(const Status& loss);

 private:
  // A span of the pipe's lines.
  struct Span {
    uint64_t position = 0;
    uint32_t lines = 0;
    Transfer* transfer = nullptr;  // whose bytes the local engine copies
  };
  static bool is_late(const std::deque<Span>& spans);
  Status enqueue_span(bool fills, const Span& span, void* to, const void* from, uint64_t size);

  Link& link_;
  SpanSinks& sinks_;
  uint64_t filled_ = 0;         // next position of the outgoing pipe
  uint64_t drained_ = 0;        // next position of the incoming pipe
  std::deque<uint64_t> taken_;  // positions of outgoing spans, not seen empty
  std::deque<Span> filling_;    // outgoing spans that the local engine fills
  std::deque<Span> draining_;   // incoming spans that it drains
};

}  // namespace oh
