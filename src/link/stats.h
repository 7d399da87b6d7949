// SPDX-License-Identifier: Apache-2.0
//
// Counters of one peer. Threading: guarded by the peer's lock.
#pragma once

#include <array>
#include <cstdint>

#include "onehop/types.h"

namespace oh {

struct PathCount {
  uint64_t operations = 0;
  uint64_t bytes = 0;
};

struct Stats {
  std::array<PathCount, OH_PATH_COUNT> sent{};
  std::array<PathCount, OH_PATH_COUNT> received{};
  uint64_t unexpected = 0;     // messages that came before their receive
  uint64_t out_of_credit = 0;  // small messages that had to ask first
  uint64_t rtrs_used = 0;      // sends that went straight into a posted buffer
  uint64_t back_pressure = 0;  // sends refused because too many were pending
  uint64_t timeouts = 0;
  uint64_t cancelled = 0;
  uint64_t stream_put = 0;     // large messages by kernels, straight into their receive
  uint64_t stream_staged = 0;  // large messages by kernels, through chunks
  uint64_t packed = 0;         // frames that UCX got in buffers for several, also if alone
  uint64_t deferred = 0;       // times that something waited for room there

  void count_sent(oh_path path, uint64_t bytes) {
    ++sent[path].operations;
    sent[path].bytes += bytes;
  }
  void count_received(oh_path path, uint64_t bytes) {
    ++received[path].operations;
    received[path].bytes += bytes;
  }
};

}  // namespace oh
