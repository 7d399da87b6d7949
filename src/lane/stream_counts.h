// SPDX-License-Identifier: Apache-2.0
//
// StreamCounts: operations and bytes that calls have enqueued on streams, for one peer. Captured
// calls are not counted: the host does not see replays of graphs.
//
// Threading: any thread. Relaxed: the counters are independent.
#pragma once

#include <atomic>

#include "kernels/stream.h"
#include "link/stats.h"

namespace oh {

class StreamCounts {
 public:
  // A receive counts the size of its buffer. A send whose size is read on the device counts its
  // maximum.
  void count(const kernels::StreamOp& op) {
    if (op.kind == kernels::StreamKind::kSend) sent_.add(op.bytes);
    if (op.kind == kernels::StreamKind::kRecv) received_.add(op.bytes);
  }
  void count_move(bool put, uint64_t bytes) { (put ? put_ : got_).add(bytes); }
  void add_to(Stats* stats, oh_path of_moves) const {
    sent_.add_to(&stats->of(MetricOp::kSend, OH_PATH_NVLINK));
    received_.add_to(&stats->of(MetricOp::kRecv, OH_PATH_NVLINK));
    put_.add_to(&stats->of(MetricOp::kPut, of_moves));
    got_.add_to(&stats->of(MetricOp::kGet, of_moves));
  }

 private:
  struct Count {
    std::atomic<uint64_t> operations{0};
    std::atomic<uint64_t> bytes{0};
    void add(uint64_t more) {
      operations.fetch_add(1, std::memory_order_relaxed);
      bytes.fetch_add(more, std::memory_order_relaxed);
    }
    void add_to(PathCount* count) const {
      count->operations += operations.load(std::memory_order_relaxed);
      count->bytes += bytes.load(std::memory_order_relaxed);
    }
  };
  Count sent_;
  Count received_;
  Count put_;
  Count got_;
};

}  // namespace oh
