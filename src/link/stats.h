// SPDX-License-Identifier: Apache-2.0
//
// Stats: the counters of one link, which the statistics of a peer and the metrics of the process
// add up.
//
// Threading: written under the link's lock, read by any thread (base/metrics.h).
#pragma once

#include <array>
#include <cstdint>

#include "base/metrics.h"
#include "onehop/types.h"

namespace oh {

struct PathCount {
  Tally operations;
  Tally bytes;

  PathCount& operator+=(const PathCount& other) {
    operations += other.operations;
    bytes += other.bytes;
    return *this;
  }
};

struct Stats {
  // Operations of the application that have succeeded, each at the side that posted it.
  using ByPath = std::array<PathCount, OH_PATH_COUNT>;
  std::array<ByPath, kMetricOps> moved{};
  Tally unexpected;     // messages that arrived before their receive
  Tally out_of_credit;  // small messages that were announced (RTS) for lack of credit
  Tally rtrs_used;      // sends straight into a posted receive (RTR)
  Tally back_pressure;  // sends refused because too many were pending
  Tally timeouts;
  Tally cancelled;
  Tally stream_put;     // large messages that kernels put straight into their receive
  Tally stream_staged;  // large messages that kernels staged through chunks
  Tally packed;         // frames passed to UCX in packed buffers, even if alone in one
  Tally deferred;       // times that a frame waited for room in those buffers
  Tally outstanding;    // requests that were posted and have not ended

  PathCount& of(MetricOp op, oh_path path) { return moved[static_cast<size_t>(op)][path]; }
  const PathCount& of(MetricOp op, oh_path path) const {
    return moved[static_cast<size_t>(op)][path];
  }
  void count(MetricOp op, oh_path path, uint64_t bytes) {
    PathCount& counted = of(op, path);
    ++counted.operations;
    counted.bytes += bytes;
  }
  PathCount sent(oh_path path) const { return sum(MetricOp::kSend, MetricOp::kPut, path); }
  PathCount received(oh_path path) const { return sum(MetricOp::kRecv, MetricOp::kGet, path); }
  void add(const Stats& other);

 private:
  PathCount sum(MetricOp one, MetricOp other, oh_path path) const {
    PathCount both = of(one, path);
    return both += of(other, path);
  }
};

}  // namespace oh
