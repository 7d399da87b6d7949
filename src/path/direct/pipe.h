// SPDX-License-Identifier: Apache-2.0
//
// Pipe: transfers through host memory, or through a slab on the sink's GPU. The source fills spans
// of the outgoing pipe, the sink drains them in order; several are under way at once. Where a
// side's buffer is on a device its engine copies, and the device writes the span's word behind the
// copy.
//
//   source: take chunks, take lines, copy, word = full        sink: copy, word = empty, count
//
// Threading: guarded by the link's lock, but for the copies, which are made without it.
#pragma once

#include <deque>

#include "path/direct/transfer.h"

namespace oh {

class SpanSinks {
 public:
  virtual ~SpanSinks() = default;
  // The transfer that a span belongs to, if this side is its sink and it has not ended.
  virtual Transfer* sink_of(const PipeSpan& span) = 0;
};

class Pipe {
 public:
  Pipe(Link& link, SpanSinks& sinks) : link_(link), sinks_(sinks) {}

  // How many lines the transfer may fill with one copy.
  uint32_t free_lines(const Transfer& transfer);
  // Copies the next chunks of a source into a span, or begins to.
  bool fill(Transfer& transfer) OH_NO_THREAD_ANALYSIS;
  // Empties the next span that has come, or begins to.
  bool drain() OH_NO_THREAD_ANALYSIS;
  // Counts the spans that our engine is through with.
  bool retire();
  // Whether our engine takes so long that it is to be asked for errors.
  bool is_late() const { return is_late(filling_) || is_late(draining_); }
  // Asks it; true when the device is lost.
  bool check() OH_NO_THREAD_ANALYSIS;
  // The device is lost: what its engine had is through.
  void give_up(const Status& loss);

 private:
  // A span of the pipe's lines.
  struct Span {
    uint64_t position = 0;
    uint32_t lines = 0;
    Transfer* transfer = nullptr;  // of which our engine copies
  };
  static bool is_late(const std::deque<Span>& spans);
  Status enqueue_span(bool fills, const Span& span, void* to, const void* from, uint64_t size);

  Link& link_;
  SpanSinks& sinks_;
  uint64_t filled_ = 0;         // positions taken of the outgoing pipe
  uint64_t drained_ = 0;        // and of the incoming one
  std::deque<uint64_t> taken_;  // positions of spans of the outgoing one, not seen empty
  std::deque<Span> filling_;    // by our engine
  std::deque<Span> draining_;
};

}  // namespace oh
